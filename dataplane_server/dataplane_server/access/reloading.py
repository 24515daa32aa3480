"""Files that are replaced while the server serves, as Kubernetes replaces those of a Secret.

A file is looked at when it is needed, at most once a second. While a new one cannot be read or makes no sense, it is
tried again at each look, the last good one stays in force, and the log says so once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from dataplane_server.log import get_log

_LOOK_S = 1.0

T = TypeVar("T")
Stamp = list[tuple[int, ...] | None]
"""Of each file, what changes when it is replaced; None if it is not there."""


class Reloaded(Generic[T]):
    """What `load` makes of some files, as they are now. The first load raises what `load` does: OSError, ValueError.
    named: further files, which a value names.

    May be used from any thread; two that load at once both get what is there.
    """

    def __init__(
        self, files: Sequence[Path], load: Callable[[], T], named: Callable[[T], Sequence[Path]] = lambda value: ()
    ) -> None:
        self._files = files
        self._load = load
        self._named = named
        self._value = load()  # names the files to stamp; what counts is loaded after that, as in `now`
        self._seen = self._failed = self._stamp()
        self._value = load()
        self._looked = time.monotonic()

    def now(self) -> T:
        """The value of the newest good files."""
        if time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            if (stamp := self._stamp()) != self._seen:
                self._reload(stamp)
        return self._value

    def _reload(self, stamp: Stamp) -> None:
        names = [str(file) for file in self._files]
        try:
            self._value = self._load()
        except (OSError, ValueError) as error:
            if stamp != self._failed:
                get_log().error("reload_failed", files=names, why=str(error))
            self._failed = stamp
        else:
            self._seen = stamp
            get_log().info("reloaded", files=names)

    def _stamp(self) -> Stamp:
        return [_stamp_of(file) for file in (*self._files, *self._named(self._value))]


def _stamp_of(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
