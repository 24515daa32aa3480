"""Up to four real ranks infer and train like one process without this package; see worker_cases.py."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.plain_policy import IS_TOKEN, logits_alone, logprobs_of, model_alone
from tests.trainer_adapter.worker.played_cases import (
    assert_logprobs,
    assert_one_step,
    assert_only_the_sound_step_was_applied,
    seen,
    trained_alone,
    whole,
)
from tests.trainer_adapter.worker.worker_cases import EVERYWHERE, MAX_GRAD_NORM, SLOW, TEMPERATURE, TWO_RANKS, Layout

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(1800)]  # four ranks on busy cores
PLACES = [
    pytest.param(layout, packing, marks=pytest.mark.soak if (layout, packing) in SLOW else (), id=f"{layout}_{packing}")
    for layout, packing in EVERYWHERE
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every rank left what it saw of the cases that are not slow."""
    folder = tmp_path_factory.mktemp("worker")
    worker_cases.save_model(folder / "model")
    worker_cases.play_cases(folder, ["killed"], exit_code=-signal.SIGKILL)
    others = {"killed", *(f"{layout}_{packing}" for layout, packing in SLOW)}
    names = [name for name in worker_cases.CASES if name not in others and not name.startswith("automodel")]
    worker_cases.play_cases(folder, names, timeout_s=270.0)
    return folder


@pytest.fixture(scope="module")
def slow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow_worker")
    worker_cases.save_model(folder / "model")
    worker_cases.play_cases(folder, [f"{layout}_{packing}" for layout, packing in SLOW])
    return folder


@pytest.fixture
def where(request: pytest.FixtureRequest, layout: Layout, packing: str) -> Path:
    """The folder in which the case was played."""
    found: Path = request.getfixturevalue("slow_folder" if (layout, packing) in SLOW else "folder")
    return found


@pytest.mark.parametrize(("layout", "packing"), PLACES)
def test_logprobs_are_those_of_a_plain_forward(where: Path, layout: Layout, packing: str) -> None:
    assert_logprobs(where, f"{layout}_{packing}", layout)


@pytest.mark.parametrize(("layout", "packing"), PLACES)
def test_the_largest_logits_are_those_of_a_plain_forward(where: Path, layout: Layout, packing: str) -> None:
    with torch.no_grad():
        logits = logits_alone(model_alone(where / "model"), TEMPERATURE)
    values, ids = logits.topk(3, dim=-1)
    case = f"{layout}_{packing}"
    found = whole(where, case, layout, "topk_logits")[IS_TOKEN]
    torch.testing.assert_close(found, values[IS_TOKEN], rtol=1e-5, atol=1e-5)
    assert torch.equal(whole(where, case, layout, "topk_indices")[IS_TOKEN], ids[IS_TOKEN])


@pytest.mark.parametrize(("layout", "packing"), PLACES)
def test_one_step_is_that_of_a_single_process(where: Path, layout: Layout, packing: str) -> None:
    assert_one_step(where, f"{layout}_{packing}", layout)


@pytest.mark.parametrize("layout", TWO_RANKS, ids=str)
def test_without_a_limit_too_a_step_that_is_not_finite_changes_nothing(folder: Path, layout: Layout) -> None:
    assert_only_the_sound_step_was_applied(folder, f"unlimited_{layout}", layout)


def test_ranks_in_16_bits_differ_from_a_plain_model_by_rounding_only(folder: Path) -> None:
    with torch.no_grad():
        expected = logprobs_of(logits_alone(model_alone(folder / "model"), TEMPERATURE))
    error = (whole(folder, "in_16_bits", Layout(dp=2), "logprobs") - expected).abs()
    assert 1e-3 < error.max().item() < 0.25
    assert error.mean().item() < 0.025
    loss, norm, _ = trained_alone(folder, MAX_GRAD_NORM)
    for rank in seen(folder, "in_16_bits", 2):
        assert (rank["loss"], rank["grad_norm"]) == pytest.approx((loss, norm), rel=0.05)


def test_a_step_communicates_once_if_its_sum_is_deferred(folder: Path) -> None:
    for deferred, at_once in zip(*(seen(folder, f"communicated_{which}", 2) for which in (True, False)), strict=True):
        once = deferred["1"]
        assert once > 0
        assert (deferred, at_once) == ({"1": once, "4": once}, {"1": once, "4": 4 * once})


def test_ranks_may_have_different_numbers_of_packed_microbatches(folder: Path) -> None:
    counts = {rank["microbatches"] for rank in seen(folder, f"{Layout(dp=2)}_sequence", 2)}
    assert len(counts) == 2


def test_each_rank_knows_its_place(folder: Path) -> None:
    for rank, seen_by in enumerate(seen(folder, f"{Layout(dp=2, tp=2)}_sequence", 4)):
        sizes = {"dp_size": 2, "tp_size": 2, "cp_size": 1, "world_size": 4}
        place = {"dp_rank": rank // 2, "tp_rank": rank % 2, "cp_rank": 0, **sizes}
        assert {key: seen_by["layout"][key] for key in place} == place


@pytest.mark.parametrize("layout", [Layout(dp=2), Layout(tp=2), Layout()], ids=str)
def test_after_a_kill_the_next_steps_are_those_of_the_run_that_went_on(folder: Path, layout: Layout) -> None:
    losses = json.loads((folder / "killed.0.json").read_text())
    for rank in seen(folder, f"resumed_{layout}", layout.ranks):
        assert rank["losses"] == pytest.approx(losses[2:], rel=1e-6)
    assert losses[2] != pytest.approx(losses[1], rel=1e-3)
