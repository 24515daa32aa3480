"""The ranks that tests share: whatever one play does to them, the next one finds them as new."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed
from tests.rank_pool import RankFailedError, RankPool

pytestmark = pytest.mark.xdist_group("ranks")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Of its own, because what is tried here breaks it."""
    pool = RankPool(rest_s=2.0)
    yield pool
    pool.close()


def look(rank: int, mark: str) -> tuple[int, int, bool, float, list[int]]:
    """This process, what the play before left in it, its first random number, and the ranks of its group."""
    torch.distributed.init_process_group("gloo")
    ranks: list[object] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, rank)
    was_marked = mark in os.environ
    os.environ[mark] = "here"
    return os.getpid(), rank, was_marked, torch.rand(()).item(), [int(str(found)) for found in ranks]


def test_each_play_has_a_group_an_environment_and_a_seed_of_its_own_in_the_same_processes(pool: RankPool) -> None:
    (first, second, third) = (pool.play(look, "MARK", ranks=ranks) for ranks in (2, 2, 1))
    assert first == second
    assert [seen[1:3] for seen in first] == [(0, False), (1, False)]
    assert [seen[4] for seen in first] == [[0, 1], [0, 1]]
    assert third == [(*first[0][:4], [0])]


def raise_on_one(rank: int) -> None:
    if rank == 1:
        raise KeyError("lost")
    threading.Event().wait()


def return_what_cannot_be_sent(rank: int) -> object:
    return threading.Lock() if rank == 1 else None


def die(rank: int) -> None:
    if rank == 1:
        os._exit(7)


def wait_for_ever(rank: int) -> None:
    if rank == 1:
        threading.Event().wait()


@pytest.mark.parametrize(
    ("play", "timeout_s", "said"),
    [
        (raise_on_one, 500.0, ["rank 1 raised:", "KeyError: 'lost'", "rank 0 has not ended:"]),
        (return_what_cannot_be_sent, 500.0, ["rank 1 raised:", "TypeError"]),
        (die, 500.0, ["rank 1 ended with 7"]),
        (wait_for_ever, 2.0, ["rank 1 has not ended:", "in wait_for_ever"]),
    ],
)
def test_ranks_that_fail_are_named_and_the_next_play_has_new_ones(
    pool: RankPool, play: Callable[[int], object], timeout_s: float, said: list[str]
) -> None:
    before = {seen[0] for seen in pool.play(look, "MARK")}
    with pytest.raises(RankFailedError) as failed:
        pool.play(play, timeout_s=timeout_s)
    assert [text for text in said if text not in str(failed.value)] == []
    after = pool.play(look, "MARK")
    assert before.isdisjoint(seen[0] for seen in after)
    assert not any(was_marked for _, _, was_marked, _, _ in after)
