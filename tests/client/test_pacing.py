"""Calls slow down together at a server that has too many.

White-box: its clock moves when it is told to, and the calls are none.
"""

from __future__ import annotations

import pytest

from dataplane_client._connect.deadline import URGENT_VERBS, WAITING_VERBS, Deadline
from dataplane_client._connect.pacing import Pacing, Turn

VERB = "PutSamples"


class World:
    """A pacing whose clock moves when it is told to, and calls of one verb."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pacing = Pacing(lambda: self.now)

    def begin(self, n: int = 1, timeout_s: float = 60.0) -> list[Turn | None]:
        return [self.pacing.enter(VERB, Deadline(timeout_s)) for _ in range(n)]

    def grow(self, n: int) -> None:
        """Have so many calls under way, as many as may be, and none waiting."""
        self.begin(4)
        self.begin(2 * n - 8)
        self.succeed(n - 4)

    def succeed(self, n: int = 1, seconds: float = 0.01) -> None:
        for _ in range(n):
            self.pacing.leave(VERB, seconds)

    def refuse(self, n: int = 1) -> None:
        for _ in range(n):
            self.pacing.refused(VERB)


@pytest.fixture
def world() -> World:
    return World()


def begun(turns: list[Turn | None]) -> list[bool]:
    return [turn is None or (turn.done() and turn.result()) for turn in turns]


def test_at_first_four_calls_begin_and_twice_as_many_after_each_round_that_succeeds(world: World) -> None:
    assert begun(world.begin(4)) == [True] * 4
    waiting = world.begin(300)
    under_way, n_begun = 4, 0
    for expected in [8, 16, 32, 64]:
        world.succeed(under_way)
        under_way, n_begun = sum(begun(waiting)) - n_begun, sum(begun(waiting))
        assert under_way == expected


def test_calls_that_take_long_let_others_begin_as_they_end_or_from_second_to_second(world: World) -> None:
    world.begin(4)
    waiting = world.begin(40)
    world.pacing.leave(VERB, None)
    assert begun(waiting) == [True] + [False] * 39
    for seconds, expected in [(0.9, 1), (0.2, 5), (1.0, 13), (1.0, 29), (1.0, 40)]:
        world.now += seconds
        world.pacing.look_again(VERB)
        assert sum(begun(waiting)) == expected


def test_after_a_refusal_half_as_many_may_be_under_way_and_others_begin_in_order(world: World) -> None:
    world.grow(8)
    world.refuse()
    waiting = world.begin(3)
    assert begun(waiting) == [False] * 3
    world.pacing.leave(VERB, None)
    assert begun(waiting) == [False] * 3, "7 are under way and 4 may be"
    for _ in range(4):
        world.pacing.leave(VERB, None)
    assert begun(waiting) == [True, False, False]


def test_refusals_of_one_moment_halve_the_bound_once_and_later_ones_again(world: World) -> None:
    world.grow(16)
    world.refuse(16)
    world.now += 0.06
    world.refuse()
    for _ in range(13):
        world.pacing.leave(VERB, None)
    assert begun(world.begin(2)) == [True, False], "16, 8, 4"


def test_one_call_is_always_left_to_find_out_when_the_server_takes_calls_again(world: World) -> None:
    world.begin()
    for _ in range(20):
        world.refuse()
        world.now += 0.06
    waiting = world.begin(2)
    assert begun(waiting) == [False, False]
    world.pacing.leave(VERB, None)
    assert begun(waiting) == [True, False]


def test_a_round_of_calls_that_succeed_makes_room_for_one_more(world: World) -> None:
    world.grow(8)
    world.refuse()
    waiting = world.begin(20)
    for _ in range(4):
        world.pacing.leave(VERB, None)
    assert sum(begun(waiting)) == 0, "four are under way and may be"
    world.succeed(5)
    assert sum(begun(waiting)) == 6, "one for each that ended, and one more"


def test_calls_that_wait_at_the_server_keep_others_out_for_seconds_only(world: World) -> None:
    world.grow(8)
    world.refuse()
    waiting = world.begin(12)
    for seconds, expected in [(0.9, 0), (0.2, 0), (1.0, 8), (1.0, 12)]:
        world.now += seconds
        world.pacing.look_again(VERB)
        assert sum(begun(waiting)) == expected


def test_a_call_does_not_begin_when_it_would_end_too_late(world: World) -> None:
    world.begin(2)
    world.refuse()
    late, in_time = world.begin(timeout_s=0.1), world.begin(timeout_s=60)
    world.succeed(2, seconds=30.0)
    assert late[0] is not None
    assert late[0].done()
    assert not late[0].result()
    assert begun(in_time) == [True]


def test_a_call_that_gives_up_leaves_its_place_to_others(world: World) -> None:
    world.begin(2)
    world.refuse()
    first, second, third = world.begin(3)
    assert first is not None
    assert second is not None
    world.pacing.give_up(VERB, first)
    world.pacing.leave(VERB, None)
    world.pacing.leave(VERB, None)
    assert begun([second, third]) == [True, False]
    world.pacing.give_up(VERB, second)  # its turn had come
    assert begun([third]) == [True]


def test_verbs_do_not_wait_for_each_other(world: World) -> None:
    world.begin(2)
    world.refuse()
    assert world.pacing.enter("ReadColumns", Deadline(1)) is None


@pytest.mark.parametrize("verb", sorted(URGENT_VERBS | WAITING_VERBS))
def test_calls_that_end_what_others_wait_for_or_wait_for_rows_are_never_held(verb: str) -> None:
    pacing = Pacing()
    for _ in range(8):
        assert pacing.enter(verb, Deadline(1)) is None
        pacing.refused(verb)
    pacing.leave(verb, None)
    assert pacing.enter(verb, Deadline(1)) is None
