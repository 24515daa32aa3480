"""Connections to a server: where it is, who calls, deadlines, pauses and sessions."""
