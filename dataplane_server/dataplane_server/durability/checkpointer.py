"""Writes checkpoints of a data directory beside its server, in a process of low priority, so the server never pauses.

`python -m dataplane_server.durability.checkpointer DIR CALLS` replays the log as the server appends it. After as many
calls since the last checkpoint it writes one, and removes the segments and checkpoints before it. It ends when its
standard input does, that is, when its server has ended by whatever cause. It removes nothing after that, since the next
server may be reading.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from dataplane_server.durability.checkpoint import remove_checkpoints, write_checkpoint
from dataplane_server.durability.log_reader import remove_before
from dataplane_server.durability.replica import Replica, kept
from dataplane_server.observe.log import get_log, show_on_stderr

_POLL_S = 0.2
_REST = 5
"""The pause after a checkpoint, in multiples of its duration."""
_NICE = 19


class Checkpointer:
    """The process. Its standard error is that of the server."""

    def __init__(self, folder: Path, calls: int) -> None:
        """Starts it. calls: between two checkpoints."""
        command = [sys.executable, "-m", "dataplane_server.durability.checkpointer", str(folder), str(calls)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)  # noqa: S603

    def close(self) -> None:
        """End it. Blocks until it has ended: at most for the rest of a checkpoint that it is writing."""
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    folder, calls = Path(sys.argv[1]), int(sys.argv[2])
    show_on_stderr("info")
    os.nice(_NICE)
    log = get_log()
    try:
        _follow(folder, calls)
    except Exception as error:
        log.error("checkpointer_failed", why=str(error), exc_info=error)
        sys.exit(1)


def _follow(folder: Path, calls: int) -> None:
    with kept(folder):
        replica = Replica(folder)
    last, rest_until = replica.reader.next_record, 0.0
    while not _server_ended(0.0 if replica.advance() else _POLL_S):
        if replica.reader.next_record - last >= calls and time.monotonic() >= rest_until:
            last = replica.reader.next_record
            seconds = _write(folder, replica)
            rest_until = time.monotonic() + _REST * seconds


def _write(folder: Path, replica: Replica) -> float:
    """Write a checkpoint and remove what it replaces. Returns how long the checkpoint took, in seconds."""
    began, next_record = time.monotonic(), replica.reader.next_record
    path = write_checkpoint(folder, replica.plane, next_record, replica.at, {})
    seconds = time.monotonic() - began
    with kept(folder):
        if not _server_ended(0.0):
            remove_checkpoints(folder, 1)
            remove_before(folder, next_record)
    size_bytes = path.stat().st_size
    get_log().info("checkpoint_written", next_record=next_record, size_bytes=size_bytes, seconds=round(seconds, 3))
    return seconds


def _server_ended(timeout_s: float) -> bool:
    """Whether the standard input has ended, now or within the timeout."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


if __name__ == "__main__":
    main()
