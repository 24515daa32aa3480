"""Workers as processes that all run one script; see torchrun_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.rank_pool import RankPool
from tests.ranks import free_port, run_ranks
from tests.trainer_adapter.automodel import rank_processes
from tests.trainer_adapter.worker_groups import torchrun_cases

pytestmark = pytest.mark.xdist_group("ranks")
Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each rank saw, by case."""
    return rank_processes.play_cases(rank_pool, torchrun_cases.__name__, tmp_path_factory.mktemp("torchrun"))


def test_each_rank_works_on_its_shard_and_every_rank_gets_the_whole_result(ranks: Seen) -> None:
    for rank in ranks:
        seen = rank["dealt"]
        assert seen["dp_size"] == 2
        assert seen["logprobs"] == [[[2.0, 2.0], [4.0, 4.0]], [[3.0, 3.0], [6.0, 6.0], [9.0, 9.0]]]
        assert seen["ranks"] == [[0, 0], [1, 1, 1]]
        assert seen["sample_ids"] == [{"ids": ["a"], "target": None}, {"ids": ["b"], "target": None}]
        assert seen["reports"] == [{"rows": [1], "rank": [0]}, {"rows": [3], "rank": [1]}]


def test_replicas_work_on_one_shard_and_their_leader_speaks(ranks: Seen) -> None:
    for rank in ranks:
        assert rank["replicated"] == {"dp_size": 1, "loss": [16.0], "ranks": [0], "dtype": "bfloat16"}


def test_all_ranks_are_asked_and_the_own_one_answers_until_the_group_is_shut_down(ranks: Seen) -> None:
    """Futures are done, one for each rank, and nothing but Ray actors needs Ray."""
    answers = {"sum": 1.0, "futures": [1.0, 1.0], "info": True, "own": True, "ray": False, "shutdown": [True, True]}
    for rank in ranks:
        assert "cannot be called: it was shut down" in rank["everywhere"].pop("afterwards")
        assert rank["everywhere"] == answers


def test_all_ranks_learn_what_the_driver_knows_or_that_it_cannot_be_sent(ranks: Seen) -> None:
    for rank, driver in zip(ranks, (True, False), strict=True):
        refused = rank["agreed"].pop("refused")
        assert rank["agreed"] == {"driver": driver, "meta": True, "values": [[1, 2], "x"], "batch": 2, "nothing": True}
        assert "unsupported value type builtin_function_or_method" in refused


@pytest.mark.parametrize("what", ["method", "plain", "batch", "meta"])
def test_ranks_that_are_about_to_do_different_things_do_nothing(ranks: Seen, what: str) -> None:
    for rank in ranks:
        assert "ValueError" in rank["disagreeing"][what]
        assert "rank(s) 1 were called with another method or other arguments than rank 0" in rank["disagreeing"][what]
        assert rank["disagreeing"]["afterwards"].startswith("returned 1.0")


def test_what_all_ranks_refuse_is_raised_as_it_is_and_the_group_goes_on(ranks: Seen) -> None:
    for rank in ranks:
        assert rank["refused"]["alike"].startswith("NotImplementedError: no rank can: fly |")
        assert rank["refused"]["afterwards"].startswith("returned 1.0")


def test_a_rank_that_fails_alone_is_named_on_every_rank_and_the_group_is_broken(ranks: Seen) -> None:
    for rank in ranks:
        seen = rank["failed_at_its_end"]
        assert seen["failed"].startswith("WorkerFailed: fail_alone: rank 1 failed: KeyError: 'rank 1 has lost it'")
        assert "cannot be called: fail_alone: rank 1 failed" in seen["afterwards"]
    assert ranks[1]["failed_at_its_end"]["failed"].endswith("| KeyError('rank 1 has lost it')")


def test_a_failure_in_the_midst_of_a_collective_call_keeps_nobody_for_ever(ranks: Seen) -> None:
    waiting, failed = (rank["failed_in_the_midst"] for rank in ranks)
    assert failed["failed"].startswith("WorkerFailed: fail_alone: rank 1 failed: KeyError")
    assert "(rank(s) 0 did not finish)" in failed["failed"]
    assert waiting["failed"].startswith("WorkerFailed: fail_alone: ")  # it may have been told by then which rank it was
    assert max(waiting["seconds"], failed["seconds"]) < 200  # the collective waits for 300 s


LOST = "another rank is gone, or did not arrive in time: "


def test_a_rank_that_lost_another_one_does_not_blame_itself(tmp_path: Path) -> None:
    port = free_port()
    run_ranks(torchrun_cases.outlive, [(rank, tmp_path, port) for rank in range(2)], exit_codes=[0, -9])
    assert (tmp_path / "told").read_text().startswith(f"WorkerFailed: be_killed: {LOST}")


def test_a_driver_that_is_gone_while_others_wait_for_its_value_breaks_the_group(ranks: Seen) -> None:
    seen = ranks[1]["left_by_the_driver"]
    assert seen["waited"].startswith(f"WorkerFailed: from_driver: {LOST}")
    assert f"cannot be called: from_driver: {LOST}" in seen["afterwards"]
