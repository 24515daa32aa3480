"""Writes checkpoints of a data directory beside its server, in a process of low priority, so the server never pauses.

`python -m dataplane_server.durability.checkpointer DIR CALLS BYTES IDENTITY` replays the log as the server appends it,
if DIR is still the folder with this identity. After as many calls since the last checkpoint, or 256 MiB of log, it
writes one. Of the segments and checkpoints before that one it keeps BYTES, for `dataplane replay`, and removes the
oldest beyond that. It ends when its standard input does, that is, when its server has ended by whatever cause. It
removes nothing after that, since the next server may be reading, and keeps no snapshot, whose values that server may
have replaced while they were copied. SIGTERM ends it sooner, but not in the middle of a checkpoint or snapshot. It has
a session of its own, so Ctrl-C ends the server alone, which then ends it.

Each line of its standard input orders a snapshot to be taken at the call BeginSnapshot that names the order. The server
writes the line before it logs the call, so the line is there when the replica comes to the call. No earlier call of the
log names the same order, though it may be of a snapshot of the same name. The answer is a line on standard output. Both
are JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from dataplane_server.core.calls.life_calls import BeginSnapshot
from dataplane_server.durability.checkpoint import checkpoints, remove_checkpoints
from dataplane_server.durability.log_reader import remove_before, segments
from dataplane_server.durability.replica import Replica, kept
from dataplane_server.durability.snapshot import SnapshotError, write_snapshot
from dataplane_server.log import get_log, show_on_stderr
from dataplane_server.storage.folders import FolderInUse

_POLL_S = 0.2
_REST = 5
"""The pause after a checkpoint, in multiples of its duration."""
_NICE = 10
"""At 19 it falls behind where no core is idle, and a recovery replays what it has not seen."""
_MOST_BYTES = 256 << 20  # of log between two checkpoints


class Checkpointer:
    """The process, which may also end by itself. Its standard error is that of the server."""

    def __init__(self, folder: Path, calls: int, history_bytes: int) -> None:
        """Starts it. calls: between two checkpoints. history_bytes: to keep of what the newest one replaces."""
        self._folder = FolderInUse(folder)
        self._words = [str(folder), str(calls), str(history_bytes), self._folder.identity]
        self._process = self._start()
        self._ordered: IO[str] | None = None  # where the answer comes from, also once another process was started

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dataplane_server.durability.checkpointer", *self._words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)  # noqa: S603

    def restart_if_ended(self) -> None:
        """Start it again, if it has ended by itself, since the log grows without it. OSError if it cannot be started;
        this may be repeated.
        """
        if self._process.poll() is not None:
            self._end()
            self._process = self._start()

    def order(self, snapshot: str, folder: Path, request_id: str) -> BeginSnapshot:
        """Have it take a snapshot at the call that this returns, which is to be applied right after. OSError if it has
        ended.
        """
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        if self._process.stdin.closed:
            raise OSError(errno.EPIPE, "the process that writes snapshots has ended, and could not be started again")
        call = BeginSnapshot(f"{snapshot} {uuid.uuid4().hex}")
        self._process.stdin.write(json.dumps([call.name, snapshot, str(folder), request_id]) + "\n")
        self._process.stdin.flush()
        self._ordered = self._process.stdout
        return call

    def answer(self) -> dict[str, Any]:
        """What became of the snapshot: its manifest, or an `error`. Blocks until it is written, or failed. EOFError if
        the process that it was ordered from ends before.
        """
        assert self._ordered is not None  # noqa: S101  # for the type checker
        line = "" if self._ordered.closed else self._ordered.readline()
        if not line.endswith("\n"):
            raise EOFError("the process that writes snapshots has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it. Blocks until it has ended: at most for the rest of a checkpoint that it is writing."""
        self._end()
        self._folder.close()

    def _end(self) -> None:
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        with contextlib.suppress(BrokenPipeError):  # it has ended before
            self._process.stdin.close()
        self._process.terminate()  # where no core is idle, it would take seconds to notice, and to end as Python does
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def main() -> None:
    folder, calls, history_bytes, identity = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    show_on_stderr("info")
    os.nice(_NICE)
    log = get_log()
    try:
        _follow(folder, calls, history_bytes, identity)
    except Exception as error:
        log.error("checkpointer_failed", why=str(error), exc_info=error)
        sys.exit(1)


class _Order(NamedTuple):
    """A snapshot to write in a folder."""

    snapshot: str
    folder: str
    request_id: str


class _Orders:
    """What the server has asked for. ended: whether it has ended."""

    def __init__(self) -> None:
        self.ended = False
        self._received = b""
        self._snapshots: dict[str, _Order] = {}

    def poll(self, timeout_s: float) -> None:
        """Read what is there. Waits for it for at most timeout_s."""
        while not self.ended and select.select([0], [], [], timeout_s)[0]:
            received = os.read(0, 1 << 16)
            self.ended = not received
            *lines, self._received = (self._received + received).split(b"\n")
            for call, *order in map(json.loads, lines):
                self._snapshots[call] = _Order(*order)
            timeout_s = 0.0

    def take(self, call: BeginSnapshot) -> _Order | None:
        """What to write at a call; None if it was ordered from a process before this one."""
        self.poll(0.0)
        return self._snapshots.pop(call.name, None)

    def check(self) -> None:
        """SnapshotError if the server has ended: rows that a snapshot keeps may have given way to others since."""
        self.poll(0.0)
        if self.ended:
            raise SnapshotError("the server has ended while its values were copied")


def _follow(folder: Path, calls: int, history_bytes: int, identity: str) -> None:
    orders, in_use = _Orders(), FolderInUse(folder, identity)
    with kept(in_use.anchor):
        replica = Replica(folder)
    replica.at_snapshot = lambda call: _take_snapshot(orders, call, replica, folder)
    last, last_bytes, rest_until = replica.calls, replica.log_bytes, 0.0
    while not orders.ended:
        orders.poll(0.0 if replica.advance() else _POLL_S)
        due = replica.calls - last >= calls or replica.log_bytes - last_bytes >= _MOST_BYTES
        if due and time.monotonic() >= rest_until and not replica.left:
            last, last_bytes = replica.calls, replica.log_bytes
            in_use.check()  # another server's log may be there
            with unbroken():
                seconds = _write(folder, replica, history_bytes, orders)
            rest_until = time.monotonic() + _REST * seconds


def _take_snapshot(orders: _Orders, call: BeginSnapshot, replica: Replica, folder: Path) -> None:
    order = orders.take(call)
    if order is None:
        return
    with unbroken():
        try:
            written = write_snapshot(
                Path(order.folder), order.snapshot, order.request_id, replica, folder / "arena", orders.check
            )
            answer = dataclasses.asdict(written)
        except (OSError, SnapshotError) as error:
            answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)  # noqa: T201  # the answer


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """A block that SIGTERM waits for. A mask would not do: NumPy has threads, which would take the signal."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            signal.raise_signal(signal.SIGTERM)


def _write(folder: Path, replica: Replica, history_bytes: int, orders: _Orders) -> float:
    """Write a checkpoint and remove what is too old. Returns how long the checkpoint took, in seconds."""
    began, next_record = time.monotonic(), replica.reader.next_record
    path = replica.write_checkpoint(folder)
    seconds = time.monotonic() - began
    with kept(folder, removing=True):
        orders.poll(0.0)
        if not orders.ended:
            remove_history(folder, history_bytes)
    size_bytes = path.stat().st_size
    get_log().info("checkpoint_written", next_record=next_record, size_bytes=size_bytes, seconds=round(seconds, 3))
    return seconds


def remove_history(folder: Path, most_bytes: int) -> None:
    """Remove the oldest of the checkpoints and segments that recovery does not need, until the others have at most as
    many bytes. They begin with a checkpoint, or with record 0.
    """
    (newest, _), *older = checkpoints(folder)
    log = segments(folder)
    needed = max(number for number, _ in log if number <= newest)
    first, keep, size = newest, 1, 0
    for record, path in [*older, *((number, None) for number, _ in log[:1] if number == 0)]:
        size += 0 if path is None else path.stat().st_size
        begun = max((number for number, _ in log if number <= record), default=needed)
        of_log = sum(segment.stat().st_size for number, segment in log if begun <= number < needed)
        if size + of_log > most_bytes or record < log[0][0]:
            break
        first, keep = record, keep + 1
    remove_checkpoints(folder, keep)
    remove_before(folder, first)


if __name__ == "__main__":
    main()
