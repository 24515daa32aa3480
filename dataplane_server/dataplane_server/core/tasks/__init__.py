"""Tasks: which rows each consumer has taken, and which are ready for its claims."""
