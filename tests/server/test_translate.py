"""Messages to values of the core and back: nothing is lost, nothing is made up."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from dataplane_server.core.calls import Definition, FieldInfo, Grant, PartitionInfo, ReadColumn, ReadPlan, TaskInfo
from dataplane_server.core.columns import DTYPE_BYTES, Shape
from dataplane_server.service import translate
from rl_dataplane.v1 import data_plane_pb2 as pb

INT64_ONE_TWO = b"\x01" + bytes(7) + b"\x02" + bytes(7)


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_every_element_type_comes_through_both_ways(name: str) -> None:
    number = pb.DataType.Value(f"DATA_TYPE_{name.upper()}")
    column = pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DataType.ValueType(number), row_shape=[2, 3])
    (spec,) = translate.put(pb.PutSamplesHeader(columns=[column])).columns
    assert spec.shape == Shape("dense", name, (2, 3))
    plan = ReadPlan(1, (ReadColumn("x", spec.shape, np.array([2])),), np.array([-1]), (), 0)
    assert list(translate.read_header(plan).columns) == [column]


@pytest.mark.parametrize("kind", ["jagged", "object"])
def test_lengths_come_through_both_ways(kind: str) -> None:
    column = pb.Column(name="x", kind=pb.FieldKind.Value(f"FIELD_KIND_{kind.upper()}"), row_lengths=INT64_ONE_TWO)
    if kind == "jagged":
        column.data_type = pb.DATA_TYPE_BOOL
    (spec,) = translate.commit(pb.CommitClaimHeader(columns=[column])).columns
    assert spec.lengths is not None
    assert spec.lengths.tolist() == [1, 2]
    plan = ReadPlan(1, (ReadColumn("x", spec.shape, spec.lengths),), np.array([3, -1]), (), 0)
    header = translate.read_header(plan)
    assert list(header.columns) == [column]
    assert np.frombuffer(header.sequence_lengths, "<i8").tolist() == [3, -1]


def test_what_a_put_does_not_hold_is_none() -> None:
    put = translate.put(pb.PutSamplesHeader(request_id="r", partition_id="p", sample_ids=["a"]))
    assert (put.request_id, put.partition_id, list(put.sample_ids)) == ("r", "p", ["a"])
    assert (list(put.columns), put.tags, put.sequence_lengths) == ([], None, None)


def test_tags_of_a_put_are_dicts_and_empty_bytes_no_tags() -> None:
    tags = {"version": 3, "std": 0.5, "ok": True, "note": None, "name": "é"}
    put = translate.put(pb.PutSamplesHeader(row_tags=[msgpack.packb(tags), b""]))
    assert put.tags == [tags, {}]


def test_a_grant_holds_what_the_client_unpacks() -> None:
    response = translate.grant(Grant("c", ("a", "b"), np.array([1, 2]), ({"n": 1}, {})))
    assert (response.claim_id, list(response.sample_ids), response.sequence_lengths) == ("c", ["a", "b"], INT64_ONE_TWO)
    assert [msgpack.unpackb(packed) if packed else {} for packed in response.row_tags] == [{"n": 1}, {}]


@pytest.mark.parametrize("size", [None, 0, 8], ids=str)
def test_a_group_size_that_is_not_given_is_none_and_zero_is_zero(size: int | None) -> None:
    request = pb.RegisterPartitionRequest(partition_id="p", fields=["x"], grpo_group_size=size)
    what = translate.definition(request)
    assert what.grpo_group_size == size
    message = translate.partition(PartitionInfo(what, (), (), 0, 0, 0, 0))
    assert (message.grpo_group_size if message.HasField("grpo_group_size") else None) == size


def test_a_definition_keeps_orders_and_enums() -> None:
    request = pb.RegisterPartitionRequest(
        partition_id="p",
        fields=["y", "x"],
        tasks=["t2", "t1"],
        num_samples=7,
        per_token_fields=["x"],
        enums={"y": pb.EnumNames(names=["no", "yes"])},
    )
    assert translate.definition(request) == Definition(
        "p", ("y", "x"), ("t2", "t1"), 7, frozenset({"x"}), None, {"y": ("no", "yes")}
    )


def test_a_partition_is_described_in_full() -> None:
    fields = (FieldInfo("x", Shape("jagged", "int8", (4,)), True, 2, 24), FieldInfo("y", None, False, 0, 0))
    tasks = (TaskInfo("train", 1, 2, 3, 4, 5),)
    message = translate.partition(PartitionInfo(Definition("p", ("x", "y"), ("train",)), fields, tasks, 6, 24, 9, 3))
    x, y = message.fields
    assert (x.name, x.kind, x.data_type, list(x.row_shape)) == ("x", pb.FIELD_KIND_JAGGED, pb.DATA_TYPE_INT8, [4])
    assert (x.per_token, x.rows, x.size_bytes) == (True, 2, 24)
    assert (y.kind, y.data_type, y.rows) == (pb.FIELD_KIND_UNSPECIFIED, pb.DATA_TYPE_UNSPECIFIED, 0)
    (task,) = message.tasks
    assert (task.task, task.untaken_rows, task.claimed_rows, task.consumed_rows) == ("train", 1, 2, 3)
    assert (task.consumed_rows_total, task.waiting_claims) == (4, 5)
    assert (message.rows, message.size_bytes, message.rows_put_total, message.rows_cleared_total) == (6, 24, 9, 3)


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [(Duration(seconds=2, nanos=500_000_000), 2.5), (Duration(), 0.0), (Duration(seconds=-3), 0.0)],
    ids=["2.5 s", "unset", "negative"],
)
def test_a_wait_is_never_negative(sent: Duration, seconds: float) -> None:
    assert translate.seconds(sent) == seconds


def test_durations_keep_their_fraction() -> None:
    assert translate.duration(3.25) == Duration(seconds=3, nanos=250_000_000)
