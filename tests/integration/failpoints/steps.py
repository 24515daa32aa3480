"""Every step of a server and its checkpointer on the way to the disk, and what can befall it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tests.integration.failpoints.failpoint import Fault

Moment = Literal["first start", "next start", "service"]

_WRITE: tuple[Fault, ...] = ("kill before", "torn", "short", "half and EIO", "kill after")
_SPACE: tuple[Fault, ...] = ("ENOSPC", "kill before", "kill after")
_ANY: tuple[Fault, ...] = ("EIO", "kill before", "kill after")
_BOTH, _DISK = ("process", "disk"), ("disk",)


class Step(NamedTuple):
    """at: as a Failpoint has it. use: which one fails. role: of the process."""

    name: str
    at: str
    moment: Moment
    faults: tuple[Fault, ...] = _ANY
    durability: tuple[str, ...] = _BOTH
    use: int = 1
    role: str = "server"


STEPS = [
    Step("folder is made", "mkdir folder", "first start"),
    Step("arena is created", "open arena.new", "first start", _SPACE),
    Step("arena gets its size", "ftruncate arena.new", "first start", _SPACE),
    Step("arena gets its space", "posix_fallocate arena.new", "first start", _SPACE),
    Step("arena is synced", "fsync arena.new", "first start"),
    Step("arena gets its name", "rename arena.new", "first start"),
    Step("name of the arena is synced", "fsync folder", "first start"),
    Step("life is counted", "pwrite arena", "first start"),
    Step("arena is mapped", "mmap arena", "first start"),
    Step("first segment is created", "open log.new", "first start", _SPACE),
    Step("first segment gets its space", "posix_fallocate log.new", "first start", _SPACE),
    Step("first header is written", "pwrite log.new", "first start", _WRITE),
    Step("first segment is synced", "fsync log.new", "first start", durability=_DISK),
    Step("first segment gets its name", "rename log.new", "first start"),
    Step("name of the first segment is synced", "fsync folder", "first start", durability=_DISK, use=2),
    Step("first segment is noted", "pwrite arena", "first start", _WRITE, use=2),
    Step("life is counted again", "pwrite arena", "next start"),
    Step("arena of the former life is synced", "fdatasync arena", "next start", durability=_DISK),
    Step("log of the former life is synced", "fdatasync log-N", "next start", durability=_DISK),
    Step("removal is locked out", "open removing", "next start"),
    Step("end of the log is cut", "ftruncate log-N", "next start"),
    Step("cut is synced", "fsync log-N", "next start"),
    Step("next header is written", "pwrite log.new", "next start", _WRITE),
    Step("next segment gets its name", "rename log.new", "next start"),
    Step("record is noted", "pwrite arena", "service", _WRITE, use=80),
    Step("record is appended", "pwrite log-N", "service", _WRITE, use=80),
    Step("values are synced", "fdatasync arena", "service", durability=_DISK, use=60),
    Step("record is synced", "fdatasync log-N", "service", durability=_DISK, use=60),
    Step("full segment is synced", "fdatasync log-N in _begin_segment", "service", durability=_DISK),
    Step("later segment gets its space", "posix_fallocate log.new", "service", _SPACE, use=2),
    Step("later header is written", "pwrite log.new", "service", _WRITE, use=2),
    Step("later segment is synced", "fsync log.new", "service", durability=_DISK, use=2),
    Step("later segment gets its name", "rename log.new", "service", use=2),
    Step("name of a later segment is synced", "fsync folder", "service", durability=_DISK, use=3),
    Step("full segment is cut", "ftruncate log-N", "service"),
    Step("checkpoint is created", "open checkpoint-N.unfinished", "service", _SPACE, role="checkpointer"),
    Step("checkpoint is written", "write checkpoint-N.unfinished", "service", _WRITE, role="checkpointer"),
    Step("log before a checkpoint is synced", "fdatasync log-N", "service", durability=_DISK, role="checkpointer"),
    Step("checkpoint is synced", "fsync checkpoint-N.unfinished", "service", role="checkpointer"),
    Step("checkpoint gets its name", "replace checkpoint-N.unfinished", "service", use=2, role="checkpointer"),
    Step("name of a checkpoint is synced", "fsync folder", "service", role="checkpointer"),
    Step("removal is locked", "open removing", "service", use=2, role="checkpointer"),
    Step("old checkpoint is removed", "unlink checkpoint-N", "service", role="checkpointer"),
    Step("old segment is removed", "unlink log-N", "service", use=2, role="checkpointer"),
]
