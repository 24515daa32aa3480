"""Real ranks that share sequences or divide activations by tokens compute what one process does; see divided_cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.trainer_adapter.automodel.divided_cases import CASES, GPU_CASES, LEFT, play_cases
from tests.trainer_adapter.automodel.divided_expected import assert_as_expected

pytestmark = pytest.mark.xdist_group("ranks")
CONTEXT = "input_ids: rows of 7 tokens cannot be divided"
TOKENS = "input_ids: dtensor_cfg.sequence_parallel cannot divide rows of 7 tokens"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "divided"


@pytest.mark.parametrize("name", CASES)
def test_ranks_infer_and_train_as_one_process_does(folder: Path, name: str) -> None:
    assert_as_expected(folder, name)


@pytest.mark.parametrize(
    ("name", "text", "multiple"),
    [
        ("context llama", CONTEXT, 4),
        ("context x4 llama", CONTEXT, 8),
        ("tokens llama", TOKENS, 2),
        ("data x tokens qwen3", TOKENS, 2),
    ],
)
def test_rows_that_cannot_be_divided_are_refused_on_all_ranks(
    folder: Path, name: str, text: str, multiple: int
) -> None:
    first, last = CASES[name].ranks
    for seen in play_cases(folder, "cpu")[first : last + 1]:
        (refusal,) = seen[name][1]["refused"]
        assert refusal.startswith(text)
        assert refusal.endswith(f"set make_sequence_length_divisible_by to a multiple of {multiple}")


@pytest.mark.parametrize("name", ["context llama", "context x4 llama", "context x tensors qwen3 packed"])
def test_torchs_own_attention_would_get_the_same_positions_and_pass_keys_around(folder: Path, name: str) -> None:
    first, last = CASES[name].ranks
    for seen in play_cases(folder, "cpu")[first : last + 1]:
        torchs, own, travel = seen[name][1]["torch deals"]
        assert (torchs, travel) == (own, "ALL_TO_ALL")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() <= LEFT[1], reason="needs two GPUs")
@pytest.mark.parametrize("name", GPU_CASES)
def test_ranks_on_gpus_infer_and_train_as_one_process_does(folder: Path, name: str) -> None:
    assert_as_expected(folder, name)
