"""Rows: where they and their values lie, and what is known of each."""
