"""Two real ranks on gloo run the same number of passes and count the same tokens; see microbatch_worker.py."""

from __future__ import annotations

from typing import Any

import pytest
from tests.trainer_adapter.automodel import microbatch_worker, rank_processes

pytestmark = pytest.mark.xdist_group("ranks")
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank saw, by case."""
    return rank_processes.play_in_one_group(microbatch_worker.__name__, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize(
    ("case", "lengths", "own"),
    [
        ("unequal", [1, 3], [[[1, 2], [1, 2], [1, 2]], [[11], [12], [13]]]),
        ("many_more", [2, 5], [[[1], [2], [1], [2], [1]], [[11], [12], [13], [14], [15]]]),
        ("equal", [2, 2], [[[1], [2]], [[11], [12]]]),
    ],
)
def test_the_rank_with_fewer_microbatches_repeats_its_own_behind_the_real_ones(
    ranks: Ranks, case: str, lengths: list[int], own: list[list[list[int]]]
) -> None:
    assert [rank[case]["own"] for rank in ranks] == own
    assert [rank[case]["length"] for rank in ranks] == lengths
    assert ranks[0][case]["summed"] == ranks[1][case]["summed"]


@pytest.mark.parametrize(
    ("case", "seqs", "toks", "dtype"),
    [
        ("masked", 3, 5, "torch.int64"),
        ("many_tokens", 2, 2**24 + 2, "torch.int64"),
        ("many_tokens_float", 2, 2**24 + 2, "torch.float32"),
    ],
)
def test_valid_samples_and_tokens_are_counted_exactly_over_all_ranks(
    ranks: Ranks, case: str, seqs: int, toks: int, dtype: str
) -> None:
    for rank in ranks:
        assert rank[case] == {"seqs": seqs, "toks": toks, "dtype": dtype}


def test_a_loss_that_needs_a_missing_mask_is_refused_only_after_the_other_ranks_have_their_counts(ranks: Ranks) -> None:
    assert "token_mask must be present" in ranks[0]["one_rank_refuses"]["error"]
    assert ranks[1]["one_rank_refuses"]["toks"] == 2
