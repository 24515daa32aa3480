"""Real ranks over NeMo Automodel models infer and train like one process with a plain model of transformers; see
worker_cases.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.played_cases import (
    assert_logprobs,
    assert_one_step,
    assert_only_the_sound_step_was_applied,
)
from tests.trainer_adapter.worker.worker_cases import OVER_AUTOMODEL, TWO_RANKS, Layout

pytestmark = [
    pytest.mark.automodel,
    pytest.mark.timeout(1800),  # the package is imported in every rank
    pytest.mark.filterwarnings("ignore"),  # it is not ours to mend what the package warns of
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("automodel_worker")
    worker_cases.save_model(folder / "model")
    names = [f"automodel_{layout}_{packing}" for layout, packing in OVER_AUTOMODEL]
    names += [f"automodel_unlimited_{layout}" for layout in TWO_RANKS if layout.cp == 1]
    worker_cases.play_cases(folder, names, warning="default", timeout_s=280)
    return folder


@pytest.mark.parametrize(("layout", "packing"), OVER_AUTOMODEL, ids=str)
def test_logprobs_are_those_of_a_plain_forward(folder: Path, layout: Layout, packing: str) -> None:
    assert_logprobs(folder, f"automodel_{layout}_{packing}", layout)


@pytest.mark.parametrize(("layout", "packing"), OVER_AUTOMODEL, ids=str)
def test_one_step_is_that_of_a_single_process(folder: Path, layout: Layout, packing: str) -> None:
    assert_one_step(folder, f"automodel_{layout}_{packing}", layout)


@pytest.mark.parametrize("layout", [layout for layout in TWO_RANKS if layout.cp == 1], ids=str)
def test_without_a_limit_too_a_step_that_is_not_finite_changes_nothing(folder: Path, layout: Layout) -> None:
    assert_only_the_sound_step_was_applied(folder, f"automodel_unlimited_{layout}", layout)
