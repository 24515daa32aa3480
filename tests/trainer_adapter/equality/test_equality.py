"""Nine layouts of ranks take the step of a plain model. `python -m tests.trainer_adapter.equality` shows the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rank_pool import RankPool
from tests.trainer_adapter.equality.layouts import CASES, differences

pytestmark = pytest.mark.xdist_group("ranks")
BACKENDS = [
    pytest.param("transformers", marks=pytest.mark.soak),
    pytest.param("automodel", marks=[pytest.mark.automodel, pytest.mark.filterwarnings("ignore")]),
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_layout_takes_the_step_of_a_plain_model(rank_pool: RankPool, tmp_path: Path, backend: str) -> None:
    seen = dict(differences(rank_pool, tmp_path, backend))
    assert seen.keys() == CASES.keys()
    for name, found in seen.items():
        assert found.largest_gradient > 0.1
        assert found.largest < 2e-5, f"{name}: {found}"
