"""What rollouts must not suffer on their way: no code from the wire, no silent loss, mix-up, cast or starvation."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from tests.integration.conftest import Eventually
from torch.nested import nested_tensor

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import (
    ClaimTimeoutError,
    DataPlaneError,
    InvalidArgumentError,
    NotFoundError,
    PreconditionError,
)
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["a", "b"], 0, ["train", "eval"])
    return client


class _Touch:
    """Unpickled, creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def test_a_put_tells_what_became_of_each_row_and_may_create_only(flow: DataPlaneClient) -> None:
    ids, values = ["s0", "s1"], {"a": torch.arange(2)}
    assert flow.put_samples(ids, "p", values, create_only=True).outcomes == ["created", "created"]
    assert flow.put_samples(["s0"], "p", {"a": torch.ones(1, dtype=torch.int64)}).outcomes == ["replaced"]
    with pytest.raises(PreconditionError, match="sample 's0' \\(and 1 more of the call\\) exists") as caught:
        flow.put_samples(ids, "p", values, create_only=True)
    assert (caught.value.reason, caught.value.details["sample_id"]) == ("SAMPLE_EXISTS", "s0")
    flow.claim("p", "train", ["a"], 1).commit()
    assert flow.put_samples(["s2", *ids], "p", {"a": torch.arange(3)}).outcomes == ["created", "consumed", "replaced"]
    with pytest.raises(ClaimTimeoutError, match="1 rows were put again after task 'train' consumed them"):
        flow.claim("p", "train", ["a"], 3, timeout_s=0.0)


def test_a_version_that_is_none_is_refused_wherever_it_is_named(flow: DataPlaneClient) -> None:
    with pytest.raises(InvalidArgumentError, match=r"sample 's': the tag weight_version must be an int .*got '7'"):
        flow.put_samples(["s"], "p", tags=[{"weight_version": "7"}])
    with pytest.raises(InvalidArgumentError, match="weight_version must be 0 to"):
        flow.reserve_group("p", "g", weight_version=-1)
    with pytest.raises(InvalidArgumentError, match="retire_below 99 is above version 3"):
        flow.set_weight_version("p", 3, retire_below=99)
    assert flow.partition("p").rows == 0


@pytest.mark.fresh_server
def test_a_crafted_message_runs_no_code_in_server_or_reader(flow: DataPlaneClient, tmp_path: Path) -> None:
    bomb = pickle.dumps(_Touch(tmp_path / "ran"))
    column = pb.Column(name="a", kind=pb.FIELD_KIND_OBJECT, row_lengths=np.array([len(bomb)], "<i8").tobytes())
    header = pb.PutSamplesHeader(request_id="r", partition_id="p", sample_ids=["s"], columns=[column])
    with grpc.insecure_channel(flow.target) as channel:
        put = pb_grpc.DataPlaneServiceStub(channel).PutSamples
        put(iter([pb.PutSamplesRequest(header=header, chunk=pb.Chunk(data=bomb))]), timeout=20)
        header = pb.PutSamplesHeader(request_id="r2", partition_id="p", sample_ids=["s"], row_tags=[bomb])
        with pytest.raises(grpc.RpcError, match="tags of row 0"):
            put(iter([pb.PutSamplesRequest(header=header)]), timeout=20)
    with pytest.raises(DataPlaneError, match="'a', row 0: not valid msgpack"):
        flow.get_samples(["s"], "p", ["a"])
    assert not (tmp_path / "ran").exists()


def test_an_underfilled_claim_does_not_block_other_callers(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    underfilled = threads.submit(flow.claim, "p", "train", ["a"], 100, timeout_s=10_000.0)
    eventually(lambda: flow.server_status().waiting_claims == 1)
    for row in range(20):
        flow.put_samples([f"s{row}"], "p", {"a": torch.zeros(1), "b": torch.zeros(1)}, timeout_s=100.0)
        flow.get_samples([f"s{row}"], "p", ["a"], timeout_s=100.0)
        assert flow.claim("p", "eval", ["a"], 1, timeout_s=100.0).commit() == 1
    assert flow.claim("p", "train", ["a", "b"], 5, timeout_s=100.0).meta.size == 5
    assert not underfilled.done()
    flow.drop_partition("p")
    assert isinstance(underfilled.exception(20), NotFoundError)


def test_a_claim_behind_an_underfilled_one_is_served_when_that_gives_up(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    underfilled = threads.submit(flow.claim, "p", "train", ["a"], 100, timeout_s=3.0)
    eventually(lambda: flow.server_status().waiting_claims == 1)
    flow.put_samples(["s"], "p", {"a": torch.zeros(1)})
    assert flow.claim("p", "train", ["a"], 1, timeout_s=100.0).meta.sample_ids == ["s"]
    assert isinstance(underfilled.exception(20), ClaimTimeoutError)


def test_clearing_398_of_400_rows_of_one_put_gives_their_bytes_back(small_client: DataPlaneClient) -> None:
    ids = [f"s{row}" for row in range(400)]
    values = torch.arange(400 * 160).to(torch.uint8).reshape(400, 160)
    small_client.register_partition("p", ["a"], 0, ["train"])
    small_client.put_samples(ids, "p", {"a": values})
    kept = [ids[100], ids[300]]
    assert small_client.clear_samples([sample for sample in ids if sample not in kept], "p") == 398
    assert small_client.server_status().memory_used_bytes == 2 * 160
    new = [f"t{row}" for row in range(398)]
    small_client.put_samples(new, "p", {"a": values[:398]}, timeout_s=0.0)
    assert torch.equal(small_client.get_samples([*kept, *new], "p", ["a"])["a"][2:], values[:398])
    assert torch.equal(small_client.get_samples(kept, "p", ["a"])["a"], values[[100, 300]])


def test_tags_of_concurrent_writers_are_merged_and_none_is_lost(
    flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    writers = [threads.submit(flow.put_samples, ["x"], "p", None, [{f"t{n}": n}]) for n in range(40)]
    for writer in writers:
        writer.result(20)
    assert flow.claim("p", "train", [], 1).meta.tags == [{f"t{n}": n for n in range(40)}]


def test_a_field_that_has_become_jagged_stays_jagged_where_all_rows_have_one_length(flow: DataPlaneClient) -> None:
    flow.put_samples(["x", "y"], "p", {"a": torch.arange(6.0).reshape(2, 3)})
    assert not flow.get_samples(["x", "y"], "p", ["a"])["a"].is_nested
    flow.put_samples(["z"], "p", {"a": nested_tensor([torch.arange(5.0)], layout=torch.jagged)})
    got = flow.get_samples(["x", "y"], "p", ["a"])["a"]
    assert got.is_nested
    assert [row.tolist() for row in got.unbind()] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    flow.clear_samples(["z"], "p")
    flow.put_samples(["w"], "p", {"a": torch.zeros(1, 3)})
    assert flow.get_samples(["w"], "p", ["a"])["a"].is_nested
    assert flow.partition("p").fields[0].kind == "jagged"


def test_a_dense_field_widens_where_dense_rows_of_another_width_come(flow: DataPlaneClient) -> None:
    flow.put_samples(["x"], "p", {"a": torch.ones(1, 2, 4)})
    flow.put_samples(["y"], "p", {"a": torch.ones(1, 5, 4)})
    got = flow.get_samples(["y", "x"], "p", ["a"])["a"]
    assert [tuple(row.shape) for row in got.unbind()] == [(5, 4), (2, 4)]
