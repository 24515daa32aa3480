"""A caller that drives a data plane in few words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from dataplane_server.core.calls import (
    ClaimRequest,
    ClearResult,
    Commit,
    CommitResult,
    Definition,
    Grant,
    PartitionInfo,
    Put,
    PutResult,
    ReadPlan,
    ReleaseResult,
    Reservation,
    Waiting,
)
from dataplane_server.core.columns import ColumnSpec, Int64Array, Shape
from dataplane_server.core.limits import Limits
from dataplane_server.core.plane import DataPlane, Totals
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Tags

BYTES = Shape("jagged", "uint8", ())


class Caller:
    """One caller of one data plane. Every call has a request_id of its own, and time stands still unless it is set."""

    def __init__(self, limits: Limits) -> None:
        self.plane = DataPlane(limits)
        self.now = 0.0
        self._requests = 0

    def request_id(self) -> str:
        self._requests += 1
        return f"request-{self._requests}"

    def register(
        self,
        fields: Sequence[str] = ("a", "b"),
        tasks: Sequence[str] = ("train",),
        partition_id: str = "p",
        **more: object,
    ) -> PartitionInfo:
        definition = Definition(partition_id, tuple(fields), tuple(tasks), **more)  # type: ignore[arg-type]
        return self.plane.register_partition(self.request_id(), definition, self.now)

    def put_call(
        self,
        sample_ids: Sequence[str],
        lengths: Mapping[str, Sequence[int]] | None = None,
        *,
        columns: Sequence[ColumnSpec] = (),
        tags: Sequence[Tags] | None = None,
        sequence_lengths: Sequence[int] | None = None,
        partition_id: str = "p",
    ) -> Put:
        """A put of byte columns, jagged, of the given lengths, and of the other columns."""
        jagged = [ColumnSpec(name, BYTES, int64(of_rows)) for name, of_rows in (lengths or {}).items()]
        given = None if sequence_lengths is None else int64(sequence_lengths)
        return Put(self.request_id(), partition_id, sample_ids, [*jagged, *columns], tags, given)

    def begin_put(self, put: Put) -> Reservation | Waiting | PutResult:
        return self.plane.begin_put(put, self.now)

    def finish(self, ticket: int) -> PutResult | CommitResult:
        return self.plane.finish(ticket, self.now)

    def put(self, put: Put) -> PutResult:
        """Begin and finish a put that has room at once."""
        reservation = self.begin_put(put)
        assert isinstance(reservation, Reservation)
        result = self.finish(reservation.ticket)
        assert isinstance(result, PutResult)
        return result

    def put_rows(self, sample_ids: Sequence[str], *fields: str, size: int = 1, partition_id: str = "p") -> PutResult:
        """Put `size` bytes in each of the fields of each row."""
        lengths = {name: [size] * len(sample_ids) for name in fields}
        return self.put(self.put_call(sample_ids, lengths, partition_id=partition_id))

    def claim_call(
        self,
        *required_fields: str,
        batch_size: int = 1,
        min_size: int | None = None,
        task: str = "train",
        partition_id: str = "p",
        consume: bool = False,
    ) -> ClaimRequest:
        least = batch_size if min_size is None else min_size
        return ClaimRequest(self.request_id(), partition_id, task, required_fields, batch_size, least, consume)

    def claim(self, request: ClaimRequest) -> Grant | Waiting:
        return self.plane.claim(request, self.now)

    def take(self, *required_fields: str, batch_size: int = 1, task: str = "train", consume: bool = False) -> Grant:
        """Claim rows that are there."""
        grant = self.claim(self.claim_call(*required_fields, batch_size=batch_size, task=task, consume=consume))
        assert isinstance(grant, Grant)
        return grant

    def commit(self, claim_id: str) -> CommitResult:
        result = self.plane.begin_commit(Commit(self.request_id(), claim_id), self.now)
        assert isinstance(result, CommitResult)
        return result

    def commit_call(self, claim_id: str, lengths: Mapping[str, Sequence[int]]) -> Commit:
        columns = [ColumnSpec(name, BYTES, int64(of_rows)) for name, of_rows in lengths.items()]
        return Commit(self.request_id(), claim_id, columns)

    def release(self, claim_id: str) -> ReleaseResult:
        return self.plane.release_claim(self.request_id(), claim_id, self.now)

    def clear(self, sample_ids: Sequence[str] | None = None, partition_id: str = "p") -> ClearResult:
        return self.plane.clear_samples(self.request_id(), partition_id, sample_ids, self.now)

    def read(self, sample_ids: Sequence[str], *fields: str) -> ReadPlan:
        return self.plane.begin_read("p", sample_ids, fields)

    @property
    def used(self) -> int:
        return self.plane.totals().memory_used_bytes

    def state(self) -> tuple[list[PartitionInfo], Totals]:
        return self.plane.partition_infos(), self.plane.totals()

    @contextlib.contextmanager
    def refuses(self, reason: Reason, *words: str) -> Iterator[None]:
        """The block is refused for this reason, in a message with these words, and nothing has changed."""
        before = self.state()
        with pytest.raises(Refusal) as caught:
            yield
        assert caught.value.reason is reason, caught.value
        for word in words:
            assert word in caught.value.message
        assert self.state() == before
        assert self.plane.take_effects() == []


def int64(values: Sequence[int]) -> Int64Array:
    return np.array(values, np.int64)
