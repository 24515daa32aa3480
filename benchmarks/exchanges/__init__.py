"""Comparisons on equal work with how other frameworks move training data between processes, one a module."""
