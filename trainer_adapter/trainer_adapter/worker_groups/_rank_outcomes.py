"""Agreement of the ranks of one script, before a method and after it.

All functions are collective over the group. Each rank sends one small record of fixed size, so a rank that failed can
report it without knowing where the others are. It waits for them for a limited time, because they may be waiting for it
inside a collective call. Then it raises its own error, and the launcher (torchrun) ends the other processes.
"""

from __future__ import annotations

from datetime import timedelta

import msgpack
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from trainer_adapter.worker_groups._failures import MAX_TEXT, Failure, common_error, failed_error, lost_rank_error

_LENGTH = 8
_RECORD = 2 * 4 * MAX_TEXT + 64
"""Bytes: room for the kind and the text of a failure, at most MAX_TEXT characters of at most 4 bytes each."""


def check_same_call(digest: bytes, method: str, group: ProcessGroup) -> None:
    """Check that all ranks make the same call. ValueError on every rank names those that differ from rank 0.

    WorkerFailed if a rank is gone, or does not arrive within the group's timeout.
    """
    try:
        found = _gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8), group)
    except RuntimeError as lost:
        raise lost_rank_error(method, lost) from lost
    others = [rank for rank, theirs in enumerate(found) if not torch.equal(theirs, found[0])]
    if others:
        raise ValueError(
            f"{method}: rank(s) {', '.join(map(str, others))} were called with another method or other arguments than "
            "rank 0; all ranks must make the same call, and share the driver's values through from_driver"
        )


def agree_on_outcome(error: Exception | None, method: str, group: ProcessGroup, grace_s: float) -> None:
    """Return if no rank failed. Otherwise raise this rank's own error if every rank failed, WorkerFailed if only some
    did.

    error: of this rank.
    grace_s: seconds that a failed rank waits for the others. Ranks that succeeded wait until the group's timeout.
    """
    rank = torch.distributed.get_rank(group)
    own = {} if error is None else {rank: Failure.of(error)}
    try:
        records = _gather(_encode_record(own.get(rank)), group, grace_s if own else None)
    except RuntimeError as lost:
        if error is None or own[rank].lost_a_rank:
            raise lost_rank_error(method, error or lost) from lost
        others = [other for other in range(group.size()) if other != rank]
        raise failed_error(method, own, others) from error
    reported = {
        other: failure for other, record in enumerate(records) if (failure := _decode_record(record)) is not None
    }
    failures = {**reported, **own}
    if failures:
        raise common_error(failures, group.size()) or failed_error(method, dict(sorted(failures.items())))


def _gather(record: Tensor, group: ProcessGroup, timeout_s: float | None = None) -> list[Tensor]:
    found = [torch.empty_like(record) for _ in range(group.size())]
    work = torch.distributed.all_gather(found, record, group=group, async_op=True)
    if timeout_s is None:
        work.wait()
    else:
        work.wait(timedelta(seconds=timeout_s))
    return found


def _encode_record(failure: Failure | None) -> Tensor:
    content = None if failure is None else [failure.kind, failure.text]
    message = msgpack.packb(content, unicode_errors="replace")
    record = len(message).to_bytes(_LENGTH, "little") + message
    return torch.frombuffer(bytearray(record.ljust(_RECORD, b"\0")), dtype=torch.uint8)


def _decode_record(record: Tensor) -> Failure | None:
    data = record.numpy().tobytes()
    content = msgpack.unpackb(data[_LENGTH : _LENGTH + int.from_bytes(data[:_LENGTH], "little")])
    return None if content is None else Failure(kind=content[0], text=content[1])
