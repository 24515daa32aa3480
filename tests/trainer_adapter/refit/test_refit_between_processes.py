"""Two ranks with sharded weights and an engine, in separate processes, over both transports; see refit_cases."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.ranks import free_port, run_ranks
from tests.trainer_adapter.refit import refit_cases
from tests.trainer_adapter.refit.refit_cases import DTYPES, TinyModel, expected_weights

from trainer_adapter.refit import WeightPublisher, stream_endpoint

pytestmark = pytest.mark.xdist_group("ranks")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="refit") as folder:  # short, for the sockets in it
        yield Path(folder)


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """What each rank of the trainer saw, when all three processes are over."""
    port = free_port()
    run_ranks(refit_cases.be_one_of_three, [(number, folder, port) for number in range(3)], exit_codes=[0, 0, 3])
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def assert_loaded(path: Path, dtype: torch.dtype) -> None:
    loaded, expected = load_file(path), expected_weights(TinyModel(adapter=True), dtype)
    assert loaded.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(loaded[name], value, rtol=0, atol=0, msg=name)


STREAMED = ("small0", "small1", "large0", "large1", "refused0")


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        *((f"{name}_{engine}", dtype) for name, dtype in DTYPES.items() for engine in STREAMED),
        ("collective", torch.float32),
        ("collective_again", torch.float32),
    ],
)
def test_each_engine_gets_whole_weights_bit_by_bit_also_after_a_refusal(
    folder: Path, engine: str, dtype: torch.dtype
) -> None:
    assert (folder / f"{engine}.txt").read_text() == "done"
    assert_loaded(folder / f"{engine}.safetensors", dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_every_rank_announces_whole_shapes(ranks: list[dict[str, Any]], name: str) -> None:
    expected = expected_weights(TinyModel(adapter=True), DTYPES[name])
    for rank in ranks:
        assert rank[f"{name}_info"] == [[key, list(value.shape), str(value.dtype)] for key, value in expected.items()]


ONE_REFUSED = ["RuntimeError: another rank failed: sending weights", "rank1.sock refused the weights: ValueError"]


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        ("one_engine_refused", ONE_REFUSED),
        ("refused_in_collective", ["RuntimeError: another rank of the group"] * 2),
        ("engine_died", ["ConnectionError: a rank of the group"] * 2),
        ("collective_closed", ["RuntimeError: the group for weights"] * 2),
        ("no_engine", ["TimeoutError: no engine connected to ipc://"] * 2),
        ("no_folder", ["TimeoutError: no engine connected to ipc://", "PermissionError: "]),
    ],
)
def test_every_rank_raises_when_an_engine_failed(ranks: list[dict[str, Any]], case: str, texts: list[str]) -> None:
    assert [text in rank[case] for rank, text in zip(ranks, texts, strict=True)] == [True, True]


@pytest.mark.usefixtures("ranks")
def test_a_refusal_names_the_weight_and_changes_nothing(folder: Path) -> None:
    for refusal in ("float32_refused1", "refused"):
        assert "gate.weight has shape (3, 8), not (4, 8)" in (folder / f"{refusal}.txt").read_text()
        assert torch.isnan(load_file(folder / f"{refusal}.safetensors")["embedding.weight"]).all()


def test_nothing_is_left_behind(folder: Path, ranks: list[dict[str, Any]]) -> None:
    assert [rank["held"] for rank in ranks] == [0, 0]
    assert not list(folder.glob("*.sock"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", DTYPES)
def test_an_engine_on_the_same_gpu_gets_the_weights_through_its_memory(folder: Path, name: str) -> None:
    device = torch.device("cuda", 0)
    publisher = WeightPublisher(TinyModel(adapter=True).to(device), DTYPES[name], device, 0, timeout_s=60)
    endpoint = stream_endpoint(device, 0)
    command = [sys.executable, refit_cases.__file__, endpoint, str(folder), name]
    with subprocess.Popen(command) as engine:
        publisher.stream_weights_via_ipc_zmq(refit_cases.BUFFER_BYTES)
        assert engine.wait(timeout=60) == 0
    publisher.close()
    assert_loaded(folder / "gpu.safetensors", DTYPES[name])
