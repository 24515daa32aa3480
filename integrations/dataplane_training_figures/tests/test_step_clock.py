"""A clock divides a step's time among the calls of its thread, and no moment counts twice."""

from __future__ import annotations

import operator
from collections import Counter
from functools import reduce
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataplane_training_figures as training
from dataplane_client.observe import Call
from rl_dataplane.v1 import data_plane_pb2 as pb

VERBS = {"ClaimSamples": "claim", "ClaimShard": "claim", "ReadColumns": "read", "PutSamples": "write"}
VERBS |= {"CommitClaim": "commit", "ListPartitions": "other_calls"}


class Time:
    """Seconds that pass as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def call_of(clock: training.StepClock, verb: str) -> Call:
    """A call that the clock observes."""
    return Call(verb, "127.0.0.1:1", pb.ListPartitionsRequest(), (clock,))


def make_call(clock: training.StepClock, verb: str, time: Time, seconds: float) -> None:
    with call_of(clock, verb):
        time.now += seconds


EVENTS = st.lists(st.tuples(st.sampled_from([*VERBS, "", "lap", "loader"]), st.integers(0, 9)))


@given(EVENTS)
def test_each_second_is_spent_on_one_thing(events: list[tuple[str, int]]) -> None:
    time, expected, laps = Time(), Counter[str](), []
    with training.StepClock(time) as clock:
        for verb, seconds in events:
            if verb == "lap":
                laps.append(clock.lap())
            elif verb == "loader":
                with clock.waiting():
                    time.now += seconds
            elif verb:
                make_call(clock, verb, time, seconds)
            else:
                time.now += seconds
            expected[VERBS.get(verb, "claim" if verb == "loader" else "rest")] += seconds if verb != "lap" else 0
        total = reduce(operator.add, [*laps, clock.lap()])
    assert (total.steps, total.seconds) == (len(laps) + 1, {kind: expected[kind] for kind in total.seconds})


def test_shares_are_those_of_the_step_and_the_seconds_their_mean() -> None:
    time = Time()
    with training.StepClock(time) as clock:
        time.now += 6
        make_call(clock, "ClaimSamples", time, 3)
        make_call(clock, "CommitClaim", time, 1)
        steps = clock.lap() + clock.lap()
    figures = {name.removeprefix("dataplane/p/step/"): value for name, value in steps.as_metrics("p").items() if value}
    shares = {"claim_share": 0.3, "commit_share": 0.1, "rest_share": 0.6, "data_plane_share": 0.4}
    assert figures == {"seconds": 5.0, **shares}


def test_of_calls_at_the_same_time_the_first_counts_and_a_lap_divides_a_call() -> None:
    time = Time()
    with training.StepClock(time) as clock, call_of(clock, "ClaimSamples"):
        make_call(clock, "ReadColumns", time, 3)
        first = clock.lap()
        time.now += 2
        assert (first.seconds["claim"], clock.lap().seconds["claim"], first.seconds["read"]) == (3, 2, 0)


def test_calls_of_other_threads_are_not_the_steps() -> None:
    time = Time()
    with training.StepClock(time) as clock:
        thread = Thread(target=make_call, args=(clock, "ReadColumns", time, 3))
        thread.start()
        thread.join()
        assert clock.lap().seconds["rest"] == 3


def test_a_clock_runs_in_its_block() -> None:
    clock = training.StepClock()
    with pytest.raises(RuntimeError, match="must be used in its `with` block"):
        clock.lap()
