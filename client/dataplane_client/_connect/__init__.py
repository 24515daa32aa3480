"""Connections to a server: where it is, who calls, with which settings; deadlines, pauses, sessions, log events."""
