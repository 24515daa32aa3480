"""Messages to values of the core and back: nothing is lost, nothing is made up."""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from dataplane_server.core.calls.answers import FieldInfo, PartitionInfo, PutResult, ReadColumn, ReadPlan, TaskInfo
from dataplane_server.core.calls.columns import Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Definition, Int64Array, Runs
from dataplane_server.service import translate
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_types import ITEM_SIZES
from rl_dataplane.v1.records import duration, seconds

INT64_ONE_TWO = b"\x01" + bytes(7) + b"\x02" + bytes(7)


def test_every_element_type_comes_through_both_ways() -> None:
    for name in ITEM_SIZES:
        number = pb.DataType.ValueType(pb.DataType.Value(f"DATA_TYPE_{name.upper()}"))
        column = pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=number, row_shape=[2, 3])
        (spec,) = translate.rows.put(pb.PutSamplesHeader(columns=[column])).columns
        assert spec.shape == Shape("dense", name, (2, 3))
        plan = ReadPlan(1, (ReadColumn("x", spec.shape, np.array([2])),), np.array([-1]), Runs.of(()), 0)
        assert list(translate.rows.read_header(plan).columns) == [column]


@pytest.mark.parametrize("kind", ["jagged", "object"])
def test_lengths_come_through_both_ways(kind: str) -> None:
    column = pb.Column(name="x", kind=pb.FieldKind.Value(f"FIELD_KIND_{kind.upper()}"), row_lengths=INT64_ONE_TWO)
    if kind == "jagged":
        column.data_type = pb.DATA_TYPE_BOOL
    (spec,) = translate.rows.commit(pb.CommitClaimHeader(columns=[column])).columns
    assert spec.lengths is not None
    assert spec.lengths.tolist() == [1, 2]
    plan = ReadPlan(1, (ReadColumn("x", spec.shape, spec.lengths),), np.array([3, -1]), Runs.of(()), 0)
    header = translate.rows.read_header(plan)
    assert list(header.columns) == [column]
    assert np.frombuffer(header.sequence_lengths, "<i8").tolist() == [3, -1]


def test_what_a_put_does_not_hold_is_none() -> None:
    put = translate.rows.put(pb.PutSamplesHeader(request_id="r", partition_id="p", sample_ids=["a"]))
    assert (put.request_id, put.partition_id, list(put.sample_ids)) == ("r", "p", ["a"])
    assert (list(put.columns), put.tags, put.sequence_lengths, put.generations) == ([], None, None, None)
    assert (put.claim_id, put.reservation_id, put.shared, put.caller) == ("", "", False, "")


def test_a_put_says_in_whose_name_it_comes_and_of_which_rows_it_speaks() -> None:
    header = pb.PutSamplesHeader(claim_id="c", reservation_id="r", shared=True, caller="me", generations=INT64_ONE_TWO)
    header.add_to_group = header.append = True
    put = translate.rows.put(header)
    assert (put.claim_id, put.reservation_id, put.shared, put.caller) == ("c", "r", True, "me")
    assert put.add_to_group
    assert put.append
    assert put.generations is not None
    assert put.generations.tolist() == [1, 2]


@pytest.mark.parametrize(
    "numbers_of",
    [
        lambda given: translate.rows.put(pb.PutSamplesHeader(generations=given)).generations,
        lambda given: translate.rows.read(pb.ReadColumnsRequest(generations=given)).generations,
        lambda given: translate.rows.clear(pb.ClearSamplesRequest(generations=given)).generations,
        lambda given: translate.rows.read(pb.ReadColumnsRequest(token_starts=given)).token_starts,
        lambda given: translate.rows.read(pb.ReadColumnsRequest(token_ends=given)).token_ends,
    ],
    ids=["generations of a put", "of a read", "of a clear", "token starts", "token ends"],
)
def test_numbers_that_are_not_given_are_none(numbers_of: Callable[[bytes | None], Int64Array | None]) -> None:
    assert numbers_of(None) is None
    given = numbers_of(INT64_ONE_TWO)
    assert given is not None
    assert given.tolist() == [1, 2]


def test_generations_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(Refusal, match="generations: 15 bytes") as caught:
        translate.rows.read(pb.ReadColumnsRequest(generations=INT64_ONE_TWO[:15]))
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_a_put_is_answered_with_the_generations_of_its_rows() -> None:
    response = translate.rows.put_result(PutResult(1, 24, np.array([1, 2])))
    assert (response.created_rows, response.size_bytes, response.generations) == (1, 24, INT64_ONE_TWO)


def test_tags_of_a_put_are_dicts_and_empty_bytes_no_tags() -> None:
    tags = {"version": 3, "std": 0.5, "ok": True, "note": None, "name": "é"}
    put = translate.rows.put(pb.PutSamplesHeader(row_tags=[msgpack.packb(tags), b""]))
    assert put.tags == [tags, {}]


@pytest.mark.parametrize("size", [None, 0, 8], ids=str)
def test_a_group_size_that_is_not_given_is_none_and_zero_is_zero(size: int | None) -> None:
    request = pb.RegisterPartitionRequest(partition_id="p", fields=["x"], grpo_group_size=size)
    what = translate.rows.register(request).definition
    assert what.grpo_group_size == size
    message = translate.rows.partition(PartitionInfo(what, (), (), 0, 0, 0, 0))
    assert (message.grpo_group_size if message.HasField("grpo_group_size") else None) == size


def test_a_definition_keeps_orders_and_enums() -> None:
    request = pb.RegisterPartitionRequest(
        partition_id="p",
        fields=["y", "x"],
        tasks=["t2", "t1"],
        num_samples=7,
        per_token_fields=["x"],
        enums={"y": pb.EnumNames(names=["no", "yes"])},
        max_deliveries=3,
    )
    assert translate.rows.register(request).definition == Definition(
        "p", ("y", "x"), ("t2", "t1"), 7, frozenset({"x"}), None, {"y": ("no", "yes")}, 3
    )


def test_a_partition_is_described_in_full() -> None:
    fields = (FieldInfo("x", Shape("jagged", "int8", (4,)), True, 2, 24), FieldInfo("y", None, False, 0, 0))
    tasks = (TaskInfo("train", 1, 2, 3, 4, 5, 6, 7, 8, {"expired": 9}, {"idle": 1.5}),)
    what = Definition("p", ("x", "y"), ("train",), max_deliveries=2)
    message = translate.rows.partition(PartitionInfo(what, fields, tasks, 6, 24, 9, 3, {"cleared": 3}, 1))
    x, y = message.fields
    assert (x.name, x.kind, x.data_type, list(x.row_shape)) == ("x", pb.FIELD_KIND_JAGGED, pb.DATA_TYPE_INT8, [4])
    assert (x.per_token, x.rows, x.size_bytes) == (True, 2, 24)
    assert (y.kind, y.data_type, y.rows) == (pb.FIELD_KIND_UNSPECIFIED, pb.DATA_TYPE_UNSPECIFIED, 0)
    (task,) = message.tasks
    assert (task.task, task.untaken_rows, task.claimed_rows, task.consumed_rows) == ("train", 1, 2, 3)
    assert (task.consumed_rows_total, task.waiting_claims, task.delayed_rows, task.dead_rows) == (4, 5, 6, 7)
    assert (task.delivered_rows_total, dict(task.ended_deliveries), dict(task.state_seconds)) == (
        8,
        {"expired": 9},
        {"idle": 1.5},
    )
    assert (message.max_deliveries, dict(message.removed_rows), message.open_groups) == (2, {"cleared": 3}, 1)
    assert (message.rows, message.size_bytes, message.rows_put_total, message.rows_cleared_total) == (6, 24, 9, 3)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(Duration(seconds=2, nanos=500_000_000), 2.5), (Duration(), 0.0), (Duration(seconds=-3), 0.0)],
    ids=["2.5 s", "unset", "negative"],
)
def test_a_wait_is_never_negative(sent: Duration, expected: float) -> None:
    assert seconds(sent) == expected


def test_durations_keep_their_fraction() -> None:
    assert duration(3.25) == Duration(seconds=3, nanos=250_000_000)
