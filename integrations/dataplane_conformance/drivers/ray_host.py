"""A Ray of this machine as a server: a process that starts it, and everything that this process started."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it at its import; a token would have to be passed on
import ray

from dataplane_conformance.drivers.owned_server import OwnedServer

_HOST = """
import os, socket, sys, time
import ray
memory, folder = 256 << 20, os.path.dirname(sys.argv[1])
quiet = dict(include_dashboard=False, log_to_driver=False)
ray.init("local", num_cpus=16, object_store_memory=memory, _temp_dir=folder, **quiet)
open(sys.argv[1], "w").write(ray.get_runtime_context().gcs_address)
exec(sys.argv[3])
server = socket.create_server(("127.0.0.1", int(sys.argv[2])))
time.sleep(3600)
"""


class RayHost(OwnedServer):
    """prepare: what the process does when Ray runs, as Python."""

    prepare = ""

    def versions(self) -> str:
        return f"Ray {version('ray')}"

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", _HOST, str(folder / "address"), str(self.port), self.prepare]

    def start(self) -> None:
        super().start()
        self.address = ((self.folder or Path()) / "address").read_text()


def join(address: str, namespace: str) -> None:
    """Connect this process to the Ray at the address."""
    ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
