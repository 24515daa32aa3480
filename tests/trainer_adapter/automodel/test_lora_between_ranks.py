"""Two real ranks on gloo train adapters like one process trains merged weights; see lora_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.rank_pool import RankPool
from tests.trainer_adapter.automodel import lora_cases, rank_processes

pytestmark = pytest.mark.xdist_group("ranks")
SOAK = [pytest.param(case, marks=pytest.mark.soak) for case in ("phi3_tp", "qwen2_tp")]


@pytest.fixture(scope="module")
def ranks(rank_pool: RankPool, folder: Path) -> list[dict[str, Any]]:
    """What each rank saw, by case."""
    return rank_processes.play_cases(rank_pool, lora_cases.__name__, folder)


@pytest.mark.parametrize("case", ["llama_dp", "llama_tp", *SOAK])
def test_two_steps_are_those_of_a_single_process_on_merged_weights_and_leave_the_base(
    folder: Path, ranks: list[dict[str, Any]], case: str
) -> None:
    lora_cases.assert_stepped_as_alone(folder, case, ranks)


def test_adapters_begin_the_same_however_ranks_are_arranged(folder: Path, ranks: list[dict[str, Any]]) -> None:
    assert all(rank["llama_dp"] and rank["llama_tp"] for rank in ranks)
    dp, tp = (load_file(folder / f"llama_{layout}.before.safetensors") for layout in ("dp", "tp"))
    assert dp.keys() == tp.keys()
    assert all(torch.equal(dp[name], value) for name, value in tp.items())


def test_training_goes_on_from_a_checkpoint_on_ranks_that_are_arranged_otherwise(ranks: list[dict[str, Any]]) -> None:
    losses = ranks[0]["checkpointed"]
    for rank in ranks:
        assert rank["resumed"] == pytest.approx(losses, rel=1e-6)


def test_adapters_that_rank_0_cannot_read_are_an_error_on_all(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["unreadable"].startswith("ValueError: ")
    assert ranks[1]["unreadable"].startswith("RuntimeError: another rank failed: reading the adapters")
