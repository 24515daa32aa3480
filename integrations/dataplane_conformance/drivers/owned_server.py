"""A server that a driver starts, kills and starts again over the same folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dataplane_conformance.system import RefusedError

_START_S = 150.0
_END_S = 10.0
_PR_SET_PDEATHSIG = 1


class OwnedServer:
    """folder: of its files, new and removed by `stop`. socket_path or port: where it listens."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.begin()

    def begin(self) -> None:
        """A new folder, and a port that nobody has."""
        self.folder = Path(tempfile.mkdtemp(prefix="conformance-"))
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = int(free.getsockname()[1])

    def start(self, words: Sequence[str], environment: Mapping[str, str] | None = None, at: Path | None = None) -> None:
        """Run the command until it listens, at the port or the socket `at`. Raises RefusedError if it ends before."""
        with (self.folder / "words").open("wb") as said:
            self._process = subprocess.Popen(  # noqa: S603 - the command of a driver
                words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for the kit, which ends it
                preexec_fn=_end_with_parent,
            )
        until = time.monotonic() + _START_S
        while not self._listens(at):
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RefusedError((self.folder / "words").read_text(errors="replace").strip()[-400:])
            time.sleep(0.02)

    def _listens(self, at: Path | None) -> bool:
        kind, where = (socket.AF_UNIX, str(at)) if at else (socket.AF_INET, ("127.0.0.1", self.port))
        with socket.socket(kind) as probe:
            return probe.connect_ex(where) == 0

    def kill(self) -> None:
        """SIGKILL to the server and what it started."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(_END_S)

    def pause(self, stopped: bool) -> None:
        """SIGSTOP or SIGCONT to the server and what it started."""
        self._signal(signal.SIGSTOP if stopped else signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        for process in _descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def stop(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    """The process and all that it and they started, parents first; Ray's are in groups and sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [process]
    for parent in found:
        found += children.get(parent, ())
    return found
