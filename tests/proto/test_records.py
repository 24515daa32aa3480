"""Messages as records and back, by the rules and by what is declared; all that has no counterpart is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.records import Mapper


class UnknownNumberError(Exception):
    pass


@pytest.fixture
def mapper() -> Mapper:
    return Mapper(reads={}, writes={}, unknown=lambda enum, number: UnknownNumberError(f"{enum} {number}"))


Order = Literal["ready", "oldest_version", "newest_version", "lowest_tag", "highest_tag"]


@dataclass(frozen=True)
class Policy:
    max_staleness: int | None
    order: Order = "ready"


@dataclass(frozen=True)
class AnyOrder:
    order: Order | None = "lowest_tag"


@dataclass(frozen=True)
class NamedOrder:
    order: Order


@dataclass(frozen=True)
class Recent:
    period_s: float
    ended_deliveries: Mapping[str, int]


@dataclass(frozen=True)
class Task:
    task: str
    policy: Policy
    recent: Recent | None
    longest_wait_s: float | None = None
    ready_rows: int | None = None


@dataclass(frozen=True)
class Definition:
    fields: tuple[str, ...]
    per_token_fields: frozenset[str]
    enums: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Consumption:
    tasks: list[Task]
    consumed: bool = False


def others(message: Any, *carried: str) -> list[str]:
    return [each.name for each in message.DESCRIPTOR.fields if each.name not in carried]


OF_POLICY = others(pb.TaskPolicy, "max_staleness", "order")
OF_TASK = others(pb.TaskStatus, "task", "policy", "recent", "longest_wait", "ready_rows")
OF_DEFINITION = others(pb.RegisterPartitionRequest, "fields", "per_token_fields", "enums")


@pytest.mark.parametrize(
    "task",
    [
        Task("train", Policy(None), None),
        Task("train", Policy(0, "highest_tag"), Recent(1.25, {}), 0.0, 0),
        Task("", Policy(3), Recent(0.0, {"a": 1, "b": 2}), 3600.5, 7),
    ],
)
def test_records_in_records_come_through_both_ways(mapper: Mapper, task: Task) -> None:
    for compile_pair in (mapper.reader, mapper.writer):
        compile_pair(Policy, pb.TaskPolicy, leave=OF_POLICY)
        compile_pair(Recent, pb.RecentTask, leave=others(pb.RecentTask, "period", "ended_deliveries"))
        compile_pair(Task, pb.TaskStatus, leave=OF_TASK)
    message = mapper.writer(Consumption, pb.GetConsumptionStatusResponse)(Consumption([task, task], True))
    assert message.tasks[0].HasField("ready_rows") == (task.ready_rows is not None)
    assert message.tasks[0].HasField("longest_wait") == (task.longest_wait_s is not None)
    assert message.tasks[0].HasField("recent") == (task.recent is not None)
    assert mapper.reader(Consumption, pb.GetConsumptionStatusResponse)(message) == Consumption([task, task], True)


def test_sequences_sets_and_maps_come_through_both_ways(mapper: Mapper) -> None:
    definition = Definition(("y", "x"), frozenset({"x"}), {"b": ("no", "yes"), "a": ()})
    message = mapper.writer(Definition, pb.RegisterPartitionRequest, leave=OF_DEFINITION)(definition)
    read = mapper.reader(Definition, pb.RegisterPartitionRequest, leave=OF_DEFINITION)(message)
    assert (read, list(read.enums)) == (definition, ["a", "b"])


@pytest.mark.parametrize(
    ("kind", "number", "order"),
    [
        (Policy, 0, "ready"),
        (AnyOrder, 0, None),
        (NamedOrder, 3, "newest_version"),
        (NamedOrder, 0, UnknownNumberError),
        (Policy, 9, UnknownNumberError),
    ],
)
def test_a_number_of_an_enum_is_a_name_the_default_or_refused(
    mapper: Mapper, kind: Any, number: Any, order: Any
) -> None:
    read = mapper.reader(kind, pb.TaskPolicy, leave=others(pb.TaskPolicy, *kind.__dataclass_fields__))
    message = pb.TaskPolicy(order=number)
    if order is UnknownNumberError:
        with pytest.raises(UnknownNumberError, match=f"ClaimOrder {number}"):
            read(message)
    else:
        assert read(message).order == order


@dataclass(frozen=True)
class Letter:
    sample: str
    text: str
    place: int = 7
    copies: list[str] = field(default_factory=list)


def test_other_names_what_is_made_of_the_whole_and_what_is_left_out_are_declared(mapper: Mapper) -> None:
    read = mapper.reader(
        Letter,
        pb.DeadLetter,
        sample="sample_id",
        text=lambda letter: f"{letter.reason} {letter.deliveries}",
        leave=("copies", "deliveries", "place", "reason"),
    )
    assert read(pb.DeadLetter(sample_id="a", deliveries=2, reason="bad")) == Letter("a", "bad 2")
    write = mapper.writer(
        Letter,
        pb.DeadLetter,
        sample_id="sample",
        reason=lambda letter: letter.text.upper(),
        leave=("copies", "deliveries", "place", "text"),
    )
    assert write(Letter("a", "bad")) == pb.DeadLetter(sample_id="a", reason="BAD")


@pytest.mark.parametrize(
    ("leave", "missing"),
    [
        (("copies", "place"), "sample"),
        (("copies", "place", "sample", "text"), "sample has no default"),
        (("copies", "place", "sample_id", "text"), "DeadLetter has no sample"),
    ],
)
def test_a_field_of_one_side_alone_is_refused(mapper: Mapper, leave: tuple[str, ...], missing: str) -> None:
    with pytest.raises(TypeError, match=missing):
        mapper.reader(Letter, pb.DeadLetter, leave=leave)
    with pytest.raises(TypeError):
        mapper.writer(Letter, pb.DeadLetter, leave=leave)


def test_a_field_of_the_message_alone_is_refused(mapper: Mapper) -> None:
    with pytest.raises(TypeError, match=r"\['deliveries', 'reason'\] of DeadLetter"):
        mapper.reader(Letter, pb.DeadLetter, sample="sample_id", text=repr, leave=("copies", "place"))


@dataclass(frozen=True)
class FewerOrders:
    order: Literal["ready", "oldest_version"]


def test_an_enum_with_other_names_is_refused(mapper: Mapper) -> None:
    for compile_pair in (mapper.reader, mapper.writer):
        with pytest.raises(TypeError, match=r"ClaimOrder has \['highest_tag'"):
            compile_pair(FewerOrders, pb.TaskPolicy, leave=others(pb.TaskPolicy, "order"))
