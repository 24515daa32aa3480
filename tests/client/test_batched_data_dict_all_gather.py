"""BatchedDataDict.all_gather between two real processes on gloo; see all_gather_worker.py for what each rank holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.client import all_gather_worker
from tests.forked import FORKS
from tests.ranks import run_ranks

pytestmark = FORKS
DTYPES = [str(dtype).removeprefix("torch.") for dtype in all_gather_worker.DTYPES]
Ranks = list[dict[str, Any]]


def played(world_size: int, backend: str, folder: Path) -> Ranks:
    """What each rank saw: {case: {column: value}} or {case: {"error": …}}."""
    arguments = [(rank, world_size, backend, folder) for rank in range(world_size)]
    run_ranks(all_gather_worker.be_a_rank, arguments, gpus=backend == "nccl")
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return played(2, "gloo", tmp_path_factory.mktemp("gloo"))


def same(ranks: Ranks, case: str) -> Any:
    assert ranks[0][case] == ranks[1][case]
    return ranks[0][case]


def test_rows_of_every_dtype_arrive_in_rank_order(two_ranks: Ranks) -> None:
    for dtype in DTYPES:
        column = same(two_ranks, f"torch.{dtype}")["x"]
        assert (column["dtype"], column["rows"]) == (f"torch.{dtype}", [[1, 0], [1, 0], [1, 1]])


def test_floats_arrive_bit_for_bit_without_gradients_and_kinds_and_classes_are_kept(two_ranks: Ranks) -> None:
    assert same(two_ranks, "bits")["x"]["bits"] == [0x7FC01234, -(2**31), 0x7FC01235, -(2**31)]
    assert same(two_ranks, "gradient")["x"]["grad"] is False
    assert same(two_ranks, "objects")["x"]["type"] == "ndarray"
    assert [same(two_ranks, case)["class"] for case in ("flat", "sliced")] == ["BatchedDataDict", "SlicedDataDict"]


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        ("flat", [10, 10, 20]),
        ("deep", [[[0, 0], [0, 0]], [[1, 1], [1, 1]]]),
        ("strided", [[0, 2], [1, 3], [0, 2], [1, 3]]),
        ("one_rank_without_rows", [[1, 1, 1], [1, 1, 1]]),
        ("no_rank_with_rows", []),
        ("lists", [{"rank": 0}, [0], {"rank": 1}, [1]]),
        ("objects", [{"rank": 0}, {"rank": 1}, "more"]),
    ],
)
def test_columns_are_concatenated_in_rank_order(two_ranks: Ranks, case: str, rows: list[Any]) -> None:
    assert same(two_ranks, case)["x"]["rows"] == rows


def test_ranks_may_hold_their_columns_in_different_orders(two_ranks: Ranks) -> None:
    result = same(two_ranks, "key_order")
    assert (result["x"]["rows"], result["y"]["rows"]) == ([0, 1], [0, 1])
    assert [key for key in two_ranks[1]["key_order"] if key != "class"] == ["x", "y"]


@pytest.mark.parametrize(
    ("case", "error", "text"),
    [
        ("keys_differ", "ValueError", "rank 0 has columns ['x'], rank 1 has ['x', 'y']"),
        ("dtypes_differ", "ValueError", "'x'"),
        ("widths_differ", "ValueError", "'x'"),
        ("kinds_differ", "ValueError", "'x'"),
        ("unpicklable", "TypeError", "'x' of rank 1 cannot be pickled"),
        ("unpicklable_by_a_runtime_error", "TypeError", "'x' of rank 1 cannot be pickled: RuntimeError"),
        ("packed", "NotImplementedError", "'x' of rank 0 is a PackedTensor"),
        ("packed_on_one_rank", "NotImplementedError", "'x' of rank 1 is a PackedTensor"),
        ("nested", "NotImplementedError", "'x' of rank 0 is a nested tensor"),
        ("0d", "NotImplementedError", "'x' of rank 0 is a 0-d tensor"),
    ],
)
def test_what_cannot_be_gathered_is_refused_on_every_rank_alike(
    two_ranks: Ranks, case: str, error: str, text: str
) -> None:
    refused = same(two_ranks, case)
    assert refused["error"] == error
    assert text in refused["text"]


def test_what_one_rank_cannot_unpickle_is_an_error_of_that_rank_alone(two_ranks: Ranks) -> None:
    assert two_ranks[0]["on_rank_0"]["x"]["rows"] == ["here", "here"]
    assert two_ranks[1]["on_rank_0"] == {"error": "ValueError", "text": "this is rank 1"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_of_every_dtype_pass_through_nccl(tmp_path: Path) -> None:
    (rank,) = played(1, "nccl", tmp_path)
    assert {dtype: rank[f"torch.{dtype}"]["x"]["rows"] for dtype in DTYPES} == {dtype: [[1, 0]] for dtype in DTYPES}
