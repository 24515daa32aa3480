"""Figures of training data, and where they go."""
