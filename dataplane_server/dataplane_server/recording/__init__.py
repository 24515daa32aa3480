"""Recordings: the calls of a server with their outcomes, written to a file, and run again on a fresh core."""
