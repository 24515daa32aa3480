"""Real ranks that divide activations by tokens compute what one process does; see divided_cases.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.trainer_adapter.automodel.divided_cases import CASES, play_cases
from tests.trainer_adapter.automodel.divided_expected import assert_as_expected

pytestmark = [
    pytest.mark.xdist_group("ranks"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="compares with ranks that compute on the CPU"),
]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "divided"


@pytest.mark.parametrize("name", [name for name in CASES if "tokens" in name])
def test_ranks_that_divide_tokens_infer_and_train_as_one_process_does(folder: Path, name: str) -> None:
    assert_as_expected(folder, name)


@pytest.mark.parametrize("name", ["tokens llama", "data x tokens qwen3"])
def test_rows_that_cannot_be_divided_are_refused_on_all_ranks(folder: Path, name: str) -> None:
    first, last = CASES[name].ranks
    for seen in play_cases(folder, "cpu")[first : last + 1]:
        (text,) = seen[name][1]["refused"]
        assert text.startswith("input_ids: dtensor_cfg.sequence_parallel cannot divide rows of 7 tokens")
        assert text.endswith("set make_sequence_length_divisible_by to a multiple of 2")
