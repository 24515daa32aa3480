"""The mutable state of the core."""
