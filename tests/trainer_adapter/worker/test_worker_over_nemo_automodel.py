"""Real ranks over NeMo Automodel models skip a step as others do; see worker_cases.py. ../equality has their steps."""

from __future__ import annotations

import pytest
from tests.rank_pool import RankPool
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.played_cases import assert_only_the_sound_step_was_applied
from tests.trainer_adapter.worker.worker_cases import TWO_RANKS, Layout, Played

pytestmark = [
    pytest.mark.automodel,
    pytest.mark.timeout(1800),  # the package is imported in every rank
    pytest.mark.filterwarnings("ignore"),  # it is not ours to mend what the package warns of
]


@pytest.fixture(scope="module")
def played(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("automodel_worker")
    worker_cases.save_model(folder / "model")
    return Played(rank_pool, folder, warning="default")


@pytest.mark.parametrize("layout", [layout for layout in TWO_RANKS if layout.cp == 1], ids=str)
def test_without_a_limit_too_a_step_that_is_not_finite_changes_nothing(played: Played, layout: Layout) -> None:
    assert_only_the_sound_step_was_applied(played, f"automodel_unlimited_{layout}")
