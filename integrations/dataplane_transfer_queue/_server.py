"""A server process of this host, for a job that names none.

It ends with the process that started it, however that ends: its standard input is a pipe from there, and when that
closes it stops. Values stay in memory that it shares with the clients of this host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_RUN = """
import os, shutil, signal, sys, threading
from dataplane_server.cli import main
threading.Thread(target=lambda: (sys.stdin.read(), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
main(sys.argv[2:])
shutil.rmtree(sys.argv[1])
"""
_MEMORY_SHARE = 2
_STOP_S = 10.0


class ServerProcess:
    """A running server. address: where it listens. http: where it serves metrics; None for nowhere.

    flags: those of `dataplane-server` by name, such as memory="8GiB" or data_dir="/data". memory: half of the machine's
    if not given, since TransferQueue has no limit. Blocks until the server listens, less than a second. Raises
    RuntimeError with the server's words if it does not start.
    """

    def __init__(self, flags: Mapping[str, object]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dataplane-"))
        self.address = f"unix://{self._folder}/dataplane.sock"
        words = self._folder / "server.log"
        with words.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command, and the flags of the job's configuration
                [sys.executable, "-c", _RUN, str(self._folder), "--listen", self.address, *_arguments(flags)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the job, which may still save what it has
            )
        told = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not told:
            said = words.read_text().strip().splitlines()
            self.stop()
            raise RuntimeError(f"the server did not start: {said[-1] if said else 'it said nothing'}")
        self.http: str | None = json.loads(told)["http"]

    def stop(self) -> None:
        """End the server; its rows are gone. Takes at most about 10 seconds."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes
        shutil.rmtree(self._folder, ignore_errors=True)  # it is there if the server was killed


def _arguments(flags: Mapping[str, object]) -> list[str]:
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MEMORY_SHARE
    given = {"memory": half, "http": "", "grace": 1.0, "log_level": "warning", **flags}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
