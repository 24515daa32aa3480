"""The server of a soak: `python -m tests.soak.server FOLDER`. As it ends, by SIGTERM, it checks the laws of its core.

What it remembers of calls, claims and rows that are over is short, so that these memories are full within the warm-up.
"""

from __future__ import annotations

import json
import signal
import sys

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.log import show_on_stderr
from dataplane_server.testing import ServerThread

_LIMITS = Limits(
    memory_bytes=16 << 20,
    max_rows=20_000,
    remembered_claims=2048,
    remembered_events=2048,
    remembered_requests=2048,
    bookkeeping_bytes=64 << 20,
)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in the threads to come, too
    show_on_stderr("error")
    unix, any_port = f"unix://{sys.argv[1]}/dataplane.sock", "127.0.0.1:0"
    config = ServerConfig(listen=(unix, any_port), http=any_port, http_door=any_port, limits=_LIMITS)
    server = ServerThread(config)
    tcp, doors = server.addresses[1], {"http": server.http_address, "http_door": server.server.http_door_address}
    sys.stdout.write(json.dumps({"unix": unix, "tcp": tcp, **doors}) + "\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM})
    server.stop()


if __name__ == "__main__":
    main()
