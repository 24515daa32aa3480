"""Up to four real ranks infer and train like one process without this package; see worker_cases.py.

Every run has QUICK: each dimension of a layout and each kind of microbatches, and both together where most jobs have
them. `make test-soak` has all combinations. A dimension has one place in the code each for its shards, its sums and its
scale, whatever the microbatches are, and the reverse holds too. So a fault of either shows wherever that dimension or
that kind is. Two dimensions at once are here (data x tensors) and in ../automodel/test_divided_between_ranks.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tests.rank_pool import RankPool
from tests.trainer_adapter.automodel.tiny_policy import logits_of_row
from tests.trainer_adapter.worker import played_cases, worker_cases
from tests.trainer_adapter.worker.plain_policy import logprobs_alone, model_alone
from tests.trainer_adapter.worker.worker_cases import (
    EVERYWHERE,
    LENGTHS,
    MAX_GRAD_NORM,
    TEMPERATURE,
    WIDTH,
    Layout,
    Played,
    batch,
)

pytestmark = pytest.mark.xdist_group("ranks")

PACKED_ON_TWO = (Layout(dp=2), "sequence")
PACKED_ON_FOUR = (Layout(dp=2, tp=2), "sequence")
QUICK = {
    (Layout(), "none"),
    (Layout(dp=2), "dynamic"),
    PACKED_ON_TWO,
    (Layout(tp=2), "none"),
    (Layout(cp=2), "sequence"),
}
long, soak = pytest.mark.long, pytest.mark.soak


def place(layout: Layout, packing: str) -> Any:
    quick, is_long = (layout, packing) in QUICK, (layout, packing) == PACKED_ON_FOUR
    return pytest.param(layout, packing, marks=() if quick else long if is_long else soak, id=f"{layout}_{packing}")


@pytest.fixture(scope="module")
def played(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("worker")
    worker_cases.save_model(folder / "model")
    return Played(rank_pool, folder)


@pytest.mark.parametrize(("layout", "packing"), [place(*one) for one in EVERYWHERE])
def test_logprobs_largest_logits_and_one_step_are_those_of_a_single_process(
    played: Played, layout: Layout, packing: str
) -> None:
    case, model = f"{layout}_{packing}", model_alone(played.folder / "model")
    is_token = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
    played_cases.assert_logprobs(played, case, layout)
    with torch.no_grad():
        logits = torch.cat([logits_of_row(model, batch(), row) for row in range(len(LENGTHS))])
    values, ids = (logits / TEMPERATURE).topk(3, dim=-1)
    found = played_cases.whole(played, case, layout, "topk_logits")[is_token]
    torch.testing.assert_close(found, values, rtol=1e-5, atol=1e-5)
    assert torch.equal(played_cases.whole(played, case, layout, "topk_indices")[is_token], ids)
    played_cases.assert_one_step(played, case)


@pytest.mark.parametrize(
    "layout", [Layout(dp=2), pytest.param(Layout(tp=2), marks=soak), pytest.param(Layout(cp=2), marks=soak)], ids=str
)
def test_without_a_limit_too_a_step_that_is_not_finite_changes_nothing(played: Played, layout: Layout) -> None:
    """Ranks that differ in their rows differ most: one alone has the gradient that is not finite."""
    played_cases.assert_only_the_sound_step_was_applied(played, f"unlimited_{layout}")


def test_ranks_in_16_bits_differ_from_a_plain_model_by_rounding_only(played: Played) -> None:
    error = (
        played_cases.whole(played, "in_16_bits", Layout(dp=2), "logprobs") - logprobs_alone(played.folder / "model")
    ).abs()
    assert 1e-3 < error.max().item() < 0.25
    assert error.mean().item() < 0.025
    loss, norm, _ = played_cases.trained_alone(played.folder, MAX_GRAD_NORM)
    for rank in played.ranks("in_16_bits"):
        assert (*rank["loss"], rank["grad_norm"]) == pytest.approx((loss, norm), rel=0.05)


@long
def test_a_step_communicates_once_if_its_sum_is_deferred(played: Played) -> None:
    for deferred, at_once in zip(*(played.ranks(f"communicated_{which}") for which in (True, False)), strict=True):
        once = deferred["1"]
        assert once > 0
        assert (deferred, at_once) == ({"1": once, "4": once}, {"1": once, "4": 4 * once})


def test_ranks_may_have_different_numbers_of_packed_microbatches(played: Played) -> None:
    assert len({rank["microbatches"] for rank in played.ranks("{}_{}".format(*PACKED_ON_TWO))}) == 2


def test_ranks_may_have_different_numbers_of_rows_if_these_are_packed(played: Played) -> None:
    played_cases.assert_logprobs(played, "uneven", Layout(dp=2))
    played_cases.assert_one_step(played, "uneven")


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("trained_without_rows", "ranks have 0 to 8 rows .* at least 1 "),
        ("asked_without_rows", "a data-parallel rank has no rows"),
        ("uneven_and_not_packed", "ranks have 3 to 5 rows .* at least 4 "),
        ("asked_uneven_and_not_packed", "ranks have 3 to 5 rows"),
        ("uneven_in_two_steps", "ranks have 2 to 6 rows .* at least 4 "),
    ],
)
def test_all_ranks_refuse_rows_that_one_of_them_has_too_few_of(played: Played, case: str, told: str) -> None:
    for rank in played.ranks(case):
        assert re.search(told, rank["told"])


def test_all_ranks_refuse_rows_of_which_a_step_would_leave_some_out(played: Played) -> None:
    for rank in played.ranks("more_than_whole_steps"):
        assert re.search(r"all ranks together have 7 samples, .* 4$", rank["told"])


ANOTHER_FAILED = "another rank failed: planning microbatches; see that rank's error"


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("dynamic_batching_logprob", ANOTHER_FAILED),
        pytest.param("dynamic_batching_train", ANOTHER_FAILED, marks=long),
        (
            "sequence_packing_logprob",
            r"another data-parallel rank could not pack its rows, or a data-parallel rank has no rows to pack; "
            r"this one has \d+",
        ),
        ("sequence_packing_train", ANOTHER_FAILED),
    ],
)
def test_all_ranks_refuse_a_row_of_one_that_is_longer_than_a_microbatch(played: Played, case: str, told: str) -> None:
    others, own = (rank["told"] for rank in played.ranks(f"too_long_{case}"))
    assert re.fullmatch(told, others)
    assert re.search("length .*exceeds", own)


@pytest.mark.parametrize(
    ("layout", "seeds"), [(Layout(dp=2), [40, 41]), (Layout(cp=2), [40, 41]), (Layout(tp=2), [40, 40])]
)
def test_ranks_with_other_tokens_draw_other_random_numbers(played: Played, layout: Layout, seeds: list[int]) -> None:
    assert [rank["seed"] for rank in played.ranks(f"seeded_{layout}")] == seeds
