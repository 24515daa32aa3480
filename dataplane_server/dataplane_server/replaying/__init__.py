"""What a server did, again: the calls of a data directory, applied to a core of this process.

Its face is the command `dataplane replay`, which runs `python -m dataplane_server.replaying`.
"""
