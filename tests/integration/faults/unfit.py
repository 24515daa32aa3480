"""Tests that a fault fails rightly, because they look at what the fault changes; and those that a cluster fails."""

from __future__ import annotations

import inspect
import re

import pytest

_NO_TIME = re.compile(r"timeout_s=0\b")
_TOO_SHORT = "it makes calls of less than a second, which leaves no time to repeat them"
_UNFIT = {
    "cluster": {
        "histories and the ids of requests outlive partitions, and one cluster has served other tests": (
            "test_a_dropped_claim_gives_its_rows_back_and_says_so",
        ),
        "its clients are forked processes, which have not joined the Ray cluster": (
            "test_a_client_that_is_killed_while_its_group_waits_leaves_nothing_behind",
            "test_another_generator_goes_on_where_one_was_killed_and_the_trainer_gets_the_group_when_it_is_whole",
            "test_rows_of_a_killed_loader_come_again_and_no_row_is_lost_or_committed_twice",
            "test_a_data_loader_with_4_workers_sees_each_of_2000_rows_once",
            "test_a_data_loader_ends_when_its_first_worker_finds_all_rows_claimed_by_the_second",
            "test_rows_of_a_killed_data_loader_worker_come_again_in_the_next_iteration",
        ),
        "commands take no ray:// address": ("test_the_command_says_of_which_step_and_rank_a_row_is",),
    },
    "resets": {
        _TOO_SHORT: (
            "test_a_claim_is_refused_for",
            "test_another_generator_goes_on_where_one_was_killed_and_the_trainer_gets_the_group_when_it_is_whole",
            "test_each_put_has_its_own_deadline",
            "test_a_write_that_has_to_be_sent_again_ends_at_its_deadline",
        ),
        "a call that is cut off does not wait just then, and then waits behind others": (
            "test_a_put_waits_in_the_data_plane_and_goes_on_when_rows_are_cleared",
            "test_calls_that_wait_follow_what_becomes_of_the_partition",
            "test_a_draw_that_waits_follows_its_band_and_ends_with_the_data",
            "test_rows_are_reserved_or_added_until_the_group_is_finished_and_then_seen_together",
            "test_a_claim_that_waits_for_rows_is_served_when_that_many_are_ready_in_whole_groups",
        ),
        "a read that is repeated is counted twice": (
            "test_two_context_parallel_ranks_that_read_halves_have_the_whole",
        ),
        "a command does not repeat its calls": (
            "test_a_healthy_flow_has_nothing_that_waits",
            "test_a_partition_that_is_not_there_is_an_error",
            "test_a_server_that_is_not_healthy_says_so_to_all_who_ask",
        ),
    },
}


def why_unfit(fault: str, item: pytest.Item) -> str | None:
    """Why a test does not hold behind a fault, or in a "cluster"; None if it should."""
    function = getattr(item, "function", None)
    if fault == "resets" and function is not None and _NO_TIME.search(inspect.getsource(function)):
        return _TOO_SHORT
    name = getattr(item, "originalname", item.name)
    return next((reason for reason, names in _UNFIT.get(fault, {}).items() if name in names), None)
