"""Policies: which rows a task gets and in which order, and when a partition takes new rows."""
