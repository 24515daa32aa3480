"""The arena that stores values."""
