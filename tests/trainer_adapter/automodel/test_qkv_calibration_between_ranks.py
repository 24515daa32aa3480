"""Two real ranks on gloo compute the scales of one process; see qkv_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.rank_pool import RankPool
from tests.trainer_adapter.automodel import qkv_cases, rank_processes

pytestmark = pytest.mark.xdist_group("ranks")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return qkv_cases.calibrated_model("qwen3")


@pytest.fixture(scope="module")
def ranks(rank_pool: RankPool, model: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, by case."""
    folder: Path = tmp_path_factory.mktemp("qkv")
    model.save_pretrained(folder / "qwen3")
    return rank_processes.play_cases(rank_pool, qkv_cases.__name__, folder)


@pytest.mark.parametrize("case", qkv_cases.CASES)
def test_all_ranks_find_the_scales_of_one_process(model: Any, ranks: list[dict[str, Any]], case: str) -> None:
    expected = qkv_cases.expected_scales(model)
    assert ranks[0][case] == ranks[1][case]
    assert ranks[0][case]["num_samples"] == len(qkv_cases.LENGTHS)
    assert ranks[0][case]["layers"].keys() == expected.keys()
    for layer, scales in expected.items():
        assert ranks[0][case]["layers"][layer] == pytest.approx(scales, rel=1e-5)
