"""Imported before gRPC: what its core logs by itself, such as every handshake that a port scan leaves half-done, stays
away from the server's log, unless GRPC_VERBOSITY asks for it.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
