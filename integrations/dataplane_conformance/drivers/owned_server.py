"""A server that a driver starts, kills and starts again over the same folder."""

from __future__ import annotations

import abc
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dataplane_conformance.system import RefusedError

_START_S = 150.0
_END_S = 10.0
_PR_SET_PDEATHSIG = 1


class OwnedServer(abc.ABC):
    """What such drivers have in common. folder: of the server's files; `stop` removes it, and the next start has a new
    one. port: one that is free. socket_path: where it listens instead, if it does.
    """

    owns_server = True
    folder: Path | None = None
    address = ""
    port = 0
    socket_path: Path | None = None
    _process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def command(self, folder: Path) -> Sequence[str]:
        """The words that start it."""

    def start(self) -> None:
        """Run the command until it listens. Raises RefusedError if it ends before."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="conformance-"))
            with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
                self.port = int(free.getsockname()[1])
        words = self.command(self.folder)
        with (self.folder / "words").open("wb") as said:
            self._process = subprocess.Popen(  # noqa: S603 - the command of a driver
                words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the kit, which ends it
                preexec_fn=_end_with_parent,
            )
        until = time.monotonic() + _START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RefusedError((self.folder / "words").read_text(errors="replace").strip()[-400:])
            time.sleep(0.02)

    def _listens(self) -> bool:
        kind, where = (
            (socket.AF_UNIX, str(self.socket_path)) if self.socket_path else (socket.AF_INET, ("127.0.0.1", self.port))
        )
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
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


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
