"""What rollouts must not suffer on their way: no code from the wire, no silent loss, mix-up, cast or starvation."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from torch.nested import nested_tensor

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import (
    ClaimTimeoutError,
    DataPlaneError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
)
from dataplane_client.options import TransportChoice
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

Eventually = Callable[[Callable[[], object]], None]


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
    underfilled = threads.submit(flow.claim, "p", "train", ["a"], 100, timeout_s=60.0)
    eventually(lambda: flow.server_status().waiting_claims == 1)
    for row in range(20):
        flow.put_samples([f"s{row}"], "p", {"a": torch.zeros(1), "b": torch.zeros(1)}, timeout_s=5.0)
        flow.get_samples([f"s{row}"], "p", ["a"], timeout_s=5.0)
        assert flow.claim("p", "eval", ["a"], 1, timeout_s=5.0).commit() == 1
    assert flow.claim("p", "train", ["a", "b"], 5, timeout_s=5.0).meta.size == 5
    assert not underfilled.done()
    flow.drop_partition("p")
    assert isinstance(underfilled.exception(20), NotFoundError)


def test_a_claim_behind_an_underfilled_one_is_served_when_that_gives_up(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    underfilled = threads.submit(flow.claim, "p", "train", ["a"], 100, timeout_s=0.5)
    eventually(lambda: flow.server_status().waiting_claims == 1)
    flow.put_samples(["s"], "p", {"a": torch.zeros(1)})
    assert flow.claim("p", "train", ["a"], 1, timeout_s=30.0).meta.sample_ids == ["s"]
    assert isinstance(underfilled.exception(20), ClaimTimeoutError)


def test_a_put_refused_for_space_leaves_none_of_its_ids_behind(small_client: DataPlaneClient) -> None:
    small_client.register_partition("p", ["a"], 0, ["train"])
    small_client.put_samples(["full"], "p", {"a": torch.zeros(1, 60 << 10, dtype=torch.uint8)})
    with pytest.raises(OutOfSpaceError):
        small_client.put_samples(["x", "y"], "p", {"a": torch.zeros(2, 8 << 10, dtype=torch.uint8)}, timeout_s=0.05)
    assert small_client.partition("p").rows_put_total == 1
    assert small_client.claim("p", "train", [], 3, min_size=1).meta.sample_ids == ["full"]
    small_client.clear_samples(["full"], "p")
    small_client.put_samples(["x", "y"], "p", {"a": torch.ones(2, 8 << 10, dtype=torch.uint8)}, timeout_s=0.0)
    assert small_client.partition("p").rows == 2


def test_a_float_put_over_an_int_field_is_refused(flow: DataPlaneClient) -> None:
    flow.put_samples(["s"], "p", {"a": torch.tensor([[1, 2]])})
    with pytest.raises(InvalidArgumentError, match=r"float32.*int64"):
        flow.put_samples(["s"], "p", {"a": torch.tensor([[0.5, 0.25]])})
    assert flow.get_samples(["s"], "p", ["a"])["a"].tolist() == [[1, 2]]


def test_a_meta_held_over_a_clear_never_reads_other_rows(flow: DataPlaneClient) -> None:
    held = flow.put_samples(["x", "y"], "p", {"a": torch.tensor([1.0, 2.0])})
    flow.clear_samples(["x", "y"], "p")
    flow.put_samples(["z", "w"], "p", {"a": torch.tensor([8.0, 9.0])})
    with pytest.raises(KeyError, match="no sample 'x'"):
        flow.get_data(held)


@pytest.mark.parametrize(
    ("ids", "field", "named"),
    [(["x", "y"], "b", "'y' has not produced field 'b'"), (["x", "gone"], "a", "no sample 'gone'")],
    ids=["unproduced field", "missing sample"],
)
def test_a_read_names_what_is_missing_and_drops_nothing_in_silence(
    flow: DataPlaneClient, ids: list[str], field: str, named: str
) -> None:
    flow.put_samples(["x", "y"], "p", {"a": torch.zeros(2)})
    flow.put_samples(["x"], "p", {"b": torch.zeros(1)})
    with pytest.raises(KeyError, match=named):
        flow.get_samples(ids, "p", ["a", field] if field != "a" else ["a"])


def test_clearing_398_of_400_rows_of_one_put_gives_their_bytes_back(small_client: DataPlaneClient) -> None:
    ids = [f"s{row}" for row in range(400)]
    values = torch.arange(400 * 160).to(torch.uint8).reshape(400, 160)
    small_client.register_partition("p", ["a"], 0, ["train"])
    small_client.put_samples(ids, "p", {"a": values})
    kept = [ids[100], ids[300]]
    assert small_client.clear_samples([sample for sample in ids if sample not in kept], "p") == 398
    assert small_client.server_status().memory_used_bytes == 2 * 160
    small_client.put_samples([f"t{row}" for row in range(398)], "p", {"a": values[:398]}, timeout_s=0.0)
    assert torch.equal(small_client.get_samples(kept, "p", ["a"])["a"], values[[100, 300]])


def test_a_put_that_names_a_sample_twice_is_refused_and_leaves_no_ghost(flow: DataPlaneClient) -> None:
    with pytest.raises(InvalidArgumentError, match="duplicate sample id 'x'"):
        flow.put_samples(["x", "y", "x"], "p", {"a": torch.zeros(3)})
    assert flow.partition("p").rows_put_total == 0
    flow.put_samples(["x"], "p", {"a": torch.zeros(1)})
    assert flow.claim("p", "train", ["a"], 5, min_size=1).meta.sample_ids == ["x"]


def test_two_loader_workers_deliver_every_row_once(
    address: str, transport: TransportChoice, flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    ids = [f"s{row}" for row in range(32)]
    flow.put_samples(ids, "p", {"a": torch.arange(32)})

    def worker() -> list[int]:
        got: list[int] = []
        with connect(address, transport=transport) as own:
            while len(got) < 16:
                with own.claim("p", "train", ["a"], 4) as claim:
                    got += own.get_data(claim.meta)["a"].tolist()
        return got

    delivered = [threads.submit(worker) for _ in range(2)]
    assert sorted(value for worker_rows in delivered for value in worker_rows.result(20)) == list(range(32))


def test_a_consumer_that_fails_loses_no_rows(flow: DataPlaneClient) -> None:
    flow.put_samples(["x", "y"], "p", {"a": torch.zeros(2)})
    with pytest.raises(RuntimeError, match="out of memory"), flow.claim("p", "train", ["a"], 2):
        raise RuntimeError("out of memory")
    assert flow.claim("p", "train", ["a"], 2, timeout_s=0).meta.sample_ids == ["x", "y"]


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
