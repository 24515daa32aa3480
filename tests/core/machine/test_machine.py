"""Random calls of many clients against the core and its model, in short histories that are shrunk when one fails, and
in long ones for what takes many calls to come about, such as a slot that is reused while a reader still has its former
row. Answers and effects of every call are compared, the whole state after every fourth and at the end. See `clients`
for what is called and `checked_plane` for what is compared. A failure tells the calls that led to it.

HYPOTHESIS_PROFILE=nightly runs far more of both, with other calls every time, and compares all after each. The summary
of the run tells how many steps were taken (not that of distributed runs).
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.machine.clients import Clients

pytestmark = pytest.mark.timeout(7200)  # a failure is shrunk before it is shown

NAME = os.environ.get("HYPOTHESIS_PROFILE", "quick")
MOST = 12 if NAME == "quick" else 400
WHOLE_ONE_IN = 1 if NAME == "nightly" else 4


def run(dice: random.Random, most: int, stop_one_in: int) -> None:
    clients = Clients(dice)
    try:
        clients.run(most, stop_one_in, WHOLE_ONE_IN)
    except Exception as error:
        turns = [f"{now:g}: {call}\n    {outcome}" for now, call, outcome in clients.world.plane.turns]
        raise AssertionError("\n".join(["after these calls:", *turns])) from error


@settings(settings(), max_examples=20 if NAME == "quick" else settings().max_examples)
@given(st.randoms(use_true_random=False))
def test_a_short_history_goes_as_the_model_says(dice: random.Random) -> None:
    run(dice, 60, 50)


@pytest.mark.long
@pytest.mark.skipif(NAME != "quick", reason="there are far more short histories in every run")
@given(st.randoms(use_true_random=False))
def test_more_short_histories_go_as_the_model_says(dice: random.Random) -> None:
    run(dice, 60, 50)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, MOST))])
def test_a_long_history_goes_as_the_model_says(seed: int) -> None:
    run(random.Random(seed), 600, 10_000)
