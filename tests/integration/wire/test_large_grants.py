"""Rows whose ids, tags or lengths are more than one message takes: nobody is handed them, and nobody loses them."""

from __future__ import annotations

import itertools
from typing import Any

import grpc
import msgpack
import pytest
from tests.integration.wire.conftest import refusal

from rl_dataplane.v1 import data_plane_pb2 as pb

ROWS = 400
TAGS = msgpack.packb({f"{number:02}": "x" * 1000 for number in range(60)})
"""60 KB: 400 rows of them are 24 MB, half of them fit."""

_numbers = itertools.count()


@pytest.fixture
def flow(stub: Any) -> Any:
    """Partition p with rows of many tags."""
    partition = pb.RegisterPartitionRequest(request_id="1", partition_id="p", fields=["x"], tasks=["train"])
    stub.RegisterPartition(partition, timeout=120)
    for begin in range(0, ROWS, 100):
        ids = [f"{number:03}" for number in range(begin, begin + 100)]
        header = pb.PutSamplesHeader(request_id=f"put-{begin}", partition_id="p", sample_ids=ids, row_tags=[TAGS] * 100)
        stub.PutSamples(iter([pb.PutSamplesRequest(header=header)]), timeout=120)
    return stub


def claim(stub: Any, rows: int, mode: pb.ClaimMode.ValueType) -> Any:
    request = pb.ClaimSamplesRequest(request_id=f"claim-{next(_numbers)}", partition_id="p", task="train", mode=mode)
    request.batch_size = rows
    return stub.ClaimSamples(request, timeout=120)


def shard(stub: Any, step: int, dp_world: int, dp_rank: int) -> Any:
    request = pb.ClaimShardRequest(request_id=f"claim-{next(_numbers)}", partition_id="p", task="train", step=step)
    request.dp_world, request.dp_rank, request.batch_size = dp_world, dp_rank, ROWS
    request.balance = pb.SHARD_BALANCE_ROWS
    return stub.ClaimShard(request, timeout=120).claim


@pytest.mark.parametrize("mode", [pb.CLAIM_MODE_ACKNOWLEDGED, pb.CLAIM_MODE_CONSUME], ids=["acknowledged", "consume"])
def test_a_claim_that_does_not_fit_is_refused_and_its_rows_are_handed_out_in_smaller_ones(
    flow: Any, mode: pb.ClaimMode.ValueType
) -> None:
    code, reason, message = refusal(lambda: claim(flow, ROWS, mode))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    assert "batch_size" in message
    ids = [*claim(flow, ROWS // 2, mode).sample_ids, *claim(flow, ROWS // 2, mode).sample_ids]
    assert ids == [f"{number:03}" for number in range(ROWS)]


def test_a_refused_claim_that_comes_again_takes_nothing_from_those_who_got_its_rows(flow: Any) -> None:
    request = pb.ClaimSamplesRequest(request_id="again", partition_id="p", task="train", batch_size=ROWS)
    request.mode = pb.CLAIM_MODE_CONSUME
    for _ in range(2):
        assert refusal(lambda: flow.ClaimSamples(request, timeout=120))[1] == "LIMIT_REACHED"
        assert consumed(flow) == 0
    claim(flow, ROWS // 2, pb.CLAIM_MODE_CONSUME)
    assert refusal(lambda: flow.ClaimSamples(request, timeout=120))[1] == "LIMIT_REACHED"
    assert consumed(flow) == ROWS // 2


def consumed(stub: Any) -> int:
    status = stub.GetConsumptionStatus(pb.GetConsumptionStatusRequest(partition_id="p", tasks=["train"]), timeout=120)
    return int(status.tasks[0].consumed_rows)


def test_a_shard_that_does_not_fit_is_refused_and_its_rows_stay_with_their_step(flow: Any) -> None:
    for _ in range(2):
        code, reason, message = refusal(lambda: shard(flow, 1, 1, 0))
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
        assert "stay with their step" in message
        task = flow.GetPartition(pb.GetPartitionRequest(partition_id="p"), timeout=120).partition.tasks[0]
        assert (task.claimed_rows, task.delayed_rows) == (0, ROWS)
    reset = pb.ResetTaskRequest(request_id="reset", partition_id="p", task="train", whole_task=True)
    flow.ResetTask(reset, timeout=120)
    ids = [*shard(flow, 1, 2, 0).sample_ids, *shard(flow, 1, 2, 1).sample_ids]
    assert ids == [f"{number:03}" for number in range(ROWS)]


def test_a_read_whose_lengths_do_not_fit_is_refused_and_smaller_ones_are_served(stub: Any) -> None:
    fields, ids = [f"f{number}" for number in range(64)], [f"{number}" for number in range(45_000)]
    partition = pb.RegisterPartitionRequest(request_id="1", partition_id="p", fields=fields, tasks=["train"])
    stub.RegisterPartition(partition, timeout=120)
    empty = {"kind": pb.FIELD_KIND_JAGGED, "data_type": pb.DATA_TYPE_UINT8, "row_lengths": bytes(8 * len(ids))}
    for part in (fields[:32], fields[32:]):
        columns = [pb.Column(name=name, **empty) for name in part]  # type: ignore[arg-type]
        header = pb.PutSamplesHeader(request_id=part[0], partition_id="p", sample_ids=ids, columns=columns)
        stub.PutSamples(iter([pb.PutSamplesRequest(header=header)]), timeout=120)

    def read(rows: int) -> list[pb.ReadColumnsResponse]:
        request = pb.ReadColumnsRequest(partition_id="p", sample_ids=ids[:rows], fields=fields)
        return list(stub.ReadColumns(request, timeout=120))

    code, reason, message = refusal(lambda: read(len(ids)))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    assert "read fewer rows or fields" in message
    assert len(read(len(ids) // 2)[0].header.columns) == len(fields)
