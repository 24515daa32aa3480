"""The figures of partitions and tasks, beside what descriptions tell of them."""

from __future__ import annotations

from typing import Any

from tests.core.caller import Caller, figures_of

from dataplane_server.core.calls.requests import AbandonClaim


def figures(caller: Caller, now: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the one partition and its first task."""
    of_partitions, of_tasks = figures_of(caller.plane, now)
    partition, task = [{name: column[0] for name, column in columns.items()} for columns in (of_partitions, of_tasks)]
    return partition, task


def test_figures_are_those_of_the_description(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    caller.take("a")
    info = caller.plane.partition_info("p", 10.0)
    partition, task = figures(caller, 10.0)
    assert (partition["rows"], partition["size_bytes"]) == (info.rows, info.size_bytes)
    assert partition["oldest_row_age_s"] == info.oldest_row_age_s
    assert partition["put_bytes"] == info.written_bytes_total
    told = info.tasks[0]
    assert [task[state] for state in ("untaken", "claimed", "consumed", "delayed", "dead")] == [2, 1, 0, 0, 0]
    assert (task["ready"], task["claims"], task["deliveries"]) == (told.ready_rows, told.claims_total, 1)
    assert task["oldest_untaken_age_s"] == told.oldest_untaken_age_s
    seconds = {state: task[f"{state}_s"] for state in told.state_seconds}
    assert seconds == told.state_seconds


def test_times_go_on_while_nothing_changes(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    caller.take("a")
    before, after = figures(caller, 5.0), figures(caller, 7.5)
    assert after[0]["oldest_row_age_s"] - before[0]["oldest_row_age_s"] == 2.5
    assert after[1]["serving_s"] - before[1]["serving_s"] == 2.5
    assert after[1]["idle_s"] == before[1]["idle_s"]


def test_a_wait_grows_until_it_ends(caller: Caller) -> None:
    ticket = caller.apply(caller.claim_call("a")).ticket  # type: ignore[union-attr]  # it has to wait
    assert figures(caller, 3.0)[1]["longest_wait_s"] - figures(caller, 1.0)[1]["longest_wait_s"] == 2.0
    caller.plane.apply(AbandonClaim(ticket), 4.0)
    assert figures(caller, 5.0)[1]["longest_wait_s"] == 0.0
