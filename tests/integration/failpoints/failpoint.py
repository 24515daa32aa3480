"""One failure on the way to the disk, in this process: what a server or its checkpointer does at a use of a step.

A step is a function of the system and a kind of file, `pwrite log-N` (N: a number in the name), or, where that is not
enough, also the function that calls it: `fdatasync log-N in _begin_segment`.
"""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Fault = Literal["kill before", "kill after", "torn", "short", "EIO", "ENOSPC", "half and EIO"]
"""torn: half is written, and the process killed. short: half is written, as a system call may."""

_OF_DESCRIPTORS = ("open", "pwrite", "posix_fallocate", "ftruncate", "truncate", "fdatasync", "fsync")
_WATCHED: list[tuple[Any, str]] = [
    *((os, name) for name in _OF_DESCRIPTORS),
    *((Path, name) for name in ("mkdir", "rename", "replace", "unlink")),
    (mmap, "mmap"),
]


@dataclass(frozen=True)
class Failpoint:
    """role: the process that fails, `server` or `checkpointer`. use: which use of the step fails, from 1 on."""

    role: str
    step: str
    fault: Fault
    use: int


class Watch:
    """What a process does in the folder of a server's data."""

    def __init__(self, folder: Path, point: Failpoint) -> None:
        self._folder = folder
        self._point = point
        self._left = point.use

    def begin(self) -> None:
        """Watch from now on."""
        original = Path.open

        def opened(path: Path, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
            if mode not in {"wb", "r+b"} or not self._kind(path):
                return original(path, mode, *rest, **keywords)
            raw = self.call("open", path, lambda: _WatchedFile(self, path, mode))
            return io.BufferedWriter(raw) if mode == "wb" else io.BufferedRandom(raw)

        for owner, name in _WATCHED:
            setattr(owner, name, self._watched(name, getattr(owner, name)))
        setattr(Path, "open", opened)  # noqa: B010  # mypy allows no other way

    def call(self, function: str, place: object, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call `act`, unless it fails here. Of a write, the first argument is the data."""
        step, fault = f"{function} {self._kind(place)}", self._point.fault
        here = self._point.step in {step, f"{step} in {sys._getframe(2).f_code.co_name}"}
        self._left -= here
        if not here or self._left:
            return act(*arguments)
        os.write(2, f"{json.dumps({'event': 'failpoint', 'step': step, 'fault': fault, 'level': 'info'})}\n".encode())
        if fault in {"torn", "short", "half and EIO"}:
            arguments = (arguments[0][: len(arguments[0]) // 2], *arguments[1:])
        answer = None if fault in {"kill before", "EIO", "ENOSPC"} else act(*arguments)
        if fault in {"kill before", "kill after", "torn"}:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault != "short":
            number = errno.ENOSPC if fault == "ENOSPC" else errno.EIO
            raise OSError(number, os.strerror(number), None if isinstance(place, int) else str(place))
        return answer

    def _kind(self, place: object) -> str:
        """What a descriptor or path in the folder is; empty for others."""
        try:
            path = Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else Path(str(place))
        except OSError:  # no file: anonymous memory
            return ""
        if path == self._folder:
            return "folder"
        return re.sub(r"\d{20}", "N", path.name) if path.parent == self._folder else ""

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Any, *arguments: Any, **keywords: Any) -> Any:
            return self.call(name, place, lambda *given: original(place, *given, **keywords), *arguments)

        return call


class _WatchedFile(io.FileIO):
    """What a buffered file writes to."""

    def __init__(self, watch: Watch, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._watch = watch

    def write(self, data: Any) -> int:
        return int(self._watch.call("write", self.fileno(), super().write, data))
