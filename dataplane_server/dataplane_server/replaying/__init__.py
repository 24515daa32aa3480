"""Replays a data directory's calls on a fresh core in this process.

Its face is the command `dataplane replay`, which runs `python -m dataplane_server.replaying`.
"""
