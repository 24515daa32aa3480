"""A caller that drives a data plane in few words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import pytest
from tests.core.replayed import RecordedPlane

from dataplane_server.core.calls import answers, requests
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.policies import TaskPolicy, TaskPolicyOf
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Balance, Definition, Int64Array, Tags
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.rows.shared_payloads import DIGEST_SIZE
from dataplane_server.core.stats.figures import Column, partition_columns, task_columns

BYTES = Shape("jagged", "uint8", ())
A = TypeVar("A")
E = TypeVar("E", bound=answers.Effect)


class Caller:
    """One caller of one data plane. Every call has a request_id of its own, and time stands still unless it is set."""

    def __init__(self, limits: Limits) -> None:
        self.plane = RecordedPlane(limits)
        self.now = 0.0
        self._requests = 0

    def request_id(self) -> str:
        self._requests += 1
        return f"request-{self._requests}"

    def apply(self, call: requests.Call[A]) -> A:
        return self.plane.apply(call, self.now)

    def answer(self, kind: type[A], call: requests.Call[object]) -> A:
        """What a call is answered, which is of this kind."""
        answer = self.apply(call)
        assert isinstance(answer, kind), answer
        return answer

    def register(
        self,
        fields: Sequence[str] = ("a", "b"),
        tasks: Sequence[str] = ("train",),
        partition_id: str = "p",
        *,
        replace: bool = True,
        **more: object,
    ) -> answers.PartitionInfo:
        """Define a partition, in place of what it is, if it is there."""
        definition = Definition(partition_id, tuple(fields), tuple(tasks), **more)  # type: ignore[arg-type]
        return self.apply(requests.RegisterPartition(self.request_id(), definition, replace)).partition

    def extend(self, **more: object) -> answers.PartitionInfo:
        return self.apply(requests.ExtendPartition(self.request_id(), "p", **more))  # type: ignore[arg-type]

    def close(self) -> int:
        """How many claims that wait end."""
        return self.apply(requests.ClosePartition(self.request_id(), "p")).ended_claims

    def put_call(
        self,
        sample_ids: Sequence[str],
        lengths: Mapping[str, Sequence[int]] | None = None,
        *,
        columns: Sequence[ColumnSpec] = (),
        tags: Sequence[Tags] | None = None,
        sequence_lengths: Sequence[int] | None = None,
        partition_id: str = "p",
        generations: Int64Array | None = None,
        **more: object,
    ) -> requests.PutSamples:
        """A put of byte columns, jagged, of the given lengths, and of the other columns."""
        jagged = [ColumnSpec(name, BYTES, int64(of_rows)) for name, of_rows in (lengths or {}).items()]
        given = None if sequence_lengths is None else int64(sequence_lengths)
        of_call = (self.request_id(), partition_id, sample_ids, [*jagged, *columns], tags, given, generations)
        return requests.PutSamples(*of_call, **more)  # type: ignore[arg-type]

    def begin(self, write: requests.PutSamples | requests.CommitClaim) -> answers.Reservation:
        """A write that has space at once."""
        return self.answer(answers.Reservation, write)

    def wait(self, call: requests.Call[object]) -> int:
        """The ticket of a call that has to wait."""
        return self.answer(answers.Waiting, call).ticket

    def effect(self, kind: type[E]) -> E:
        """What was told to a caller that waited, the only one that was told anything."""
        (effect,) = self.plane.take_effects()
        assert isinstance(effect, kind), effect
        return effect

    def fails(self, reason: Reason, ticket: int, *words: str) -> None:
        """A write is refused at its end for this reason, in a message with these words."""
        with pytest.raises(Refusal) as caught:
            self.finish(ticket)
        assert caught.value.reason is reason, caught.value
        assert [word for word in words if word not in caught.value.message] == []

    def finish(self, ticket: int, digests: bytes = b"") -> answers.PutResult | answers.CommitResult:
        return self.apply(requests.FinishWrite(ticket, digests=digests))

    def put(self, put: requests.PutSamples) -> answers.PutResult:
        """Begin and finish a put that has room at once."""
        result = self.finish(self.begin(put).ticket)
        assert isinstance(result, answers.PutResult)
        return result

    def put_once(self, values: Mapping[str, bytes], field: str = "a", **more: object) -> answers.PutResult:
        """Put a value for each sample, which is kept once."""
        lengths = {field: [len(value) for value in values.values()]}
        reservation = self.begin(self.put_call(list(values), lengths, once=(field,), **more))  # type: ignore[arg-type]
        digests = [blake2b(value, digest_size=DIGEST_SIZE).digest() for value in values.values()]
        result = self.finish(reservation.ticket, b"".join(digests))
        assert isinstance(result, answers.PutResult)
        return result

    def put_rows(
        self, sample_ids: Sequence[str], *fields: str, size: int = 1, partition_id: str = "p"
    ) -> answers.PutResult:
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
        **more: object,
    ) -> requests.ClaimSamples:
        least = batch_size if min_size is None else min_size
        of_call = (self.request_id(), partition_id, task, required_fields, batch_size, least, consume)
        return requests.ClaimSamples(*of_call, **more)  # type: ignore[arg-type]

    def take(self, *required_fields: str, **more: object) -> answers.Grant:
        """Claim rows that are there."""
        return self.answer(answers.Grant, self.claim_call(*required_fields, **more))  # type: ignore[arg-type]

    def shard_call(
        self,
        *required_fields: str,
        step: int = 0,
        dp_rank: int = 0,
        dp_world: int = 2,
        batch_size: int = 4,
        min_size: int | None = None,
        balance: Balance = "rows",
        **more: object,
    ) -> requests.ClaimShard:
        least = batch_size if min_size is None else min_size
        of_step = (step, dp_rank, dp_world, required_fields, batch_size, least, balance)
        return requests.ClaimShard(self.request_id(), "p", "train", *of_step, **more)  # type: ignore[arg-type]

    def take_shard(self, *required_fields: str, **more: object) -> answers.Grant:
        """Claim a shard of rows that are there."""
        return self.answer(answers.Grant, self.shard_call(*required_fields, **more))  # type: ignore[arg-type]

    def draw_call(
        self,
        *required_fields: str,
        batch_size: int = 1,
        min_size: int | None = None,
        partition_id: str = "p",
        seed: int = 0,
        **more: object,
    ) -> requests.DrawSamples:
        least = batch_size if min_size is None else min_size
        of_call = (self.request_id(), partition_id, batch_size, least, seed)
        return requests.DrawSamples(*of_call, required_fields=required_fields, **more)  # type: ignore[arg-type]

    def draw(self, *required_fields: str, **more: object) -> answers.Drawn:
        return self.answer(answers.Drawn, self.draw_call(*required_fields, **more))  # type: ignore[arg-type]

    def commit(self, claim_id: str) -> answers.CommitResult:
        return self.answer(answers.CommitResult, requests.CommitClaim(self.request_id(), claim_id))

    def commit_call(self, claim_id: str, lengths: Mapping[str, Sequence[int]]) -> requests.CommitClaim:
        columns = [ColumnSpec(name, BYTES, int64(of_rows)) for name, of_rows in lengths.items()]
        return requests.CommitClaim(self.request_id(), claim_id, columns)

    def write_back(
        self, claim_id: str, sample_ids: Sequence[str], lengths: Mapping[str, Sequence[int]]
    ) -> answers.PutResult:
        return self.put(self.put_call(sample_ids, lengths, claim_id=claim_id))

    def release(self, claim_id: str, *, delay_s: float = 0.0, reason: str = "") -> answers.ReleaseResult:
        return self.apply(requests.ReleaseClaim(self.request_id(), claim_id, delay_s, reason))

    def abandon_request(self, claim_request_id: str) -> answers.ReleaseResult:
        return self.apply(requests.AbandonRequest(self.request_id(), claim_request_id))

    def adopt(self, claim_id: str, session_id: str) -> None:
        self.apply(requests.AdoptClaim(self.request_id(), claim_id, session_id))

    def reset(self, sample_ids: Sequence[str] | None = None, task: str = "train") -> answers.ResetResult:
        return self.apply(requests.ResetTask(self.request_id(), "p", task, sample_ids))

    def clear(
        self, sample_ids: Sequence[str] | None = None, partition_id: str = "p", generations: Int64Array | None = None
    ) -> answers.ClearResult:
        return self.apply(requests.ClearSamples(self.request_id(), partition_id, sample_ids, generations))

    def open_session(self, grace_s: float | None = None) -> str:
        """The id of a new session."""
        return self.apply(requests.OpenSession("", "client", grace_s)).session_id

    def pass_time(self, seconds: float) -> list[answers.Effect]:
        """Let time pass, and what is due by then happen. What callers that wait were told."""
        self.now += seconds
        self.apply(requests.Advance())
        return [effect for effect in self.plane.take_effects() if not isinstance(effect, answers.SessionExpired)]

    def set_version(self, version: int, retire_below: int | None = None) -> answers.Retired:
        return self.apply(requests.SetWeightVersion(self.request_id(), "p", version, retire_below))

    def set_policy(
        self, max_staleness: int | None = None, *, task: str = "train", **more: object
    ) -> answers.PartitionInfo:
        policy = TaskPolicy(max_staleness, **more)  # type: ignore[arg-type]
        return self.apply(requests.SetPolicies(self.request_id(), "p", (TaskPolicyOf(task, policy),)))

    def set_flow(self, **flow: object) -> answers.PartitionInfo:
        return self.apply(requests.SetPolicies(self.request_id(), "p", (), FlowPolicy(**flow)))  # type: ignore[arg-type]

    def put_versions(self, **versions: int | None) -> None:
        """Put a row for each name, of a weight version (None: of an unknown one)."""
        tags: list[Tags] = [{} if version is None else {"weight_version": version} for version in versions.values()]
        self.put(self.put_call(list(versions), {"a": [1] * len(versions)}, tags=tags))

    def reserve_call(
        self, group_id: str, sample_ids: Sequence[str], session_id: str = "", **more: object
    ) -> requests.ReserveGroup:
        return requests.ReserveGroup(self.request_id(), "p", group_id, sample_ids, session_id, **more)  # type: ignore[arg-type]

    def reserve(
        self, group_id: str, sample_ids: Sequence[str], session_id: str = "", **more: object
    ) -> answers.Reserved:
        return self.answer(answers.Reserved, self.reserve_call(group_id, sample_ids, session_id, **more))

    def add_call(
        self, reservation_id: str, sample_ids: Sequence[str], lengths: Mapping[str, Sequence[int]], **more: object
    ) -> requests.PutSamples:
        """A put of byte columns that adds rows to a group."""
        return self.put_call(sample_ids, lengths, reservation_id=reservation_id, add_to_group=True, **more)  # type: ignore[arg-type]

    def share(self, reservation_id: str, **sizes: int) -> answers.PutResult:
        """Put one value of so many bytes for all rows of a group."""
        lengths = {name: [size] for name, size in sizes.items()}
        return self.put(self.put_call([], lengths, reservation_id=reservation_id, shared=True))

    def finish_group(self, reservation_id: str, weight_version: int | None = None) -> answers.GroupFinished:
        return self.apply(requests.FinishGroup(self.request_id(), reservation_id, weight_version))

    def abort_group(self, reservation_id: str, reason: str = "") -> answers.GroupAborted:
        return self.apply(requests.AbortGroup(self.request_id(), reservation_id, reason))

    def abandon_reservation(self, reserve_request_id: str) -> answers.GroupAborted:
        return self.apply(requests.AbortGroup(self.request_id(), "", "not taken", (), reserve_request_id))

    def put_group(self, group_id: str, sample_ids: Sequence[str], *fields: str) -> str:
        """A group that is finished, with a byte in each of the fields of each row; the id of its reservation."""
        reservation_id = self.reserve(group_id, sample_ids).reservation_id
        lengths = {name: [1] * len(sample_ids) for name in fields}
        self.put(self.put_call(sample_ids, lengths, reservation_id=reservation_id))
        self.finish_group(reservation_id)
        return reservation_id

    def task(self, task: str = "train") -> answers.TaskInfo:
        tasks = self.plane.partition_info("p", self.now).tasks
        return next(info for info in tasks if info.task == task)

    def standing(self, sample_id: str, task: str = "train") -> answers.SampleTask:
        """Where a row that is there stands with a task."""
        resident = self.plane.sample("p", sample_id).resident
        assert resident is not None
        return next(one for one in resident.tasks if one.task == task)

    def read(
        self, sample_ids: Sequence[str], *fields: str, tokens: tuple[Sequence[int], Sequence[int]] | None = None
    ) -> answers.ReadPlan:
        starts, ends = (None, None) if tokens is None else map(int64, tokens)
        return self.apply(requests.BeginRead("p", sample_ids, fields, token_starts=starts, token_ends=ends))

    @property
    def used(self) -> int:
        return self.plane.totals().memory_used_bytes

    def state(self) -> tuple[list[answers.PartitionInfo], list[object], answers.Totals]:
        """Partitions, the tags of their rows, and the whole."""
        tags = [one.rows.tags_of(one.rows.all_slots()) for one in self.plane.partitions.values()]
        return [*map(self.plane.partition_info, self.plane.partitions)], [*tags], self.plane.totals()

    @contextlib.contextmanager
    def refuses(self, reason: Reason, *words: str) -> Iterator[None]:
        """The block is refused for this reason, in a message with these words, and nothing has changed."""
        before, drawn = self.state(), self._drawn()
        with pytest.raises(Refusal) as caught:
            yield
        assert caught.value.reason is reason, caught.value
        for word in words:
            assert word in caught.value.message
        assert (self.state(), self._drawn()) == (before, drawn)
        assert self.plane.take_effects() == []

    def _drawn(self) -> list[int]:
        return [partition.entrance.drawn_rows for partition in self.plane.partitions.values()]


def figures_of(plane: DataPlane, now: float) -> tuple[dict[str, Column], dict[str, Column]]:
    """The figures of all partitions, and those of all their tasks."""
    partitions = plane.partitions.values()
    return partition_columns(partitions, now), task_columns(partitions, now)


def int64(values: Sequence[int]) -> Int64Array:
    return np.array(values, np.int64)
