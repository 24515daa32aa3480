"""Whether a call may wait behind others, by how long they take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataplane_server.service.turns import BURST_S, LEAST_WAITING, PATIENCE_S, TARGET_S, Pace

FAST_S, SLOW_S = 0.0001, 0.01
MANY = 1000
"""Calls after which the average is that of the last ones."""


@pytest.mark.parametrize(
    ("served", "caught_up", "may_wait"),
    [
        pytest.param([], False, 500, id="at first, calls may come all at once"),
        pytest.param([(4, 4 * FAST_S)] * 20, False, 1200, id="fast calls may still come all at once"),
        pytest.param([(4, 4 * FAST_S)] * MANY, False, 500, id="they may not when there have been too many for a while"),
        pytest.param([(4, 4 * FAST_S)] * MANY, True, 2500, id="they may again when none has been waiting"),
        pytest.param([(1, SLOW_S)] * MANY, True, 25, id="fewer slow calls may"),
        pytest.param([(1, SLOW_S)] * MANY, False, LEAST_WAITING, id="a few may always"),
        pytest.param([(1, 60.0)], False, LEAST_WAITING, id="also behind one that took very long"),
    ],
)
def test_as_many_calls_may_wait_as_will_be_served_soon(
    served: Sequence[tuple[int, float]], caught_up: bool, may_wait: int
) -> None:
    pace = Pace()
    for n_calls, seconds in served:
        pace.served(n_calls, seconds)
    if caught_up:
        pace.caught_up()
    admitted = next(n for n in range(100_000) if not pace.admits(n))
    assert admitted == pytest.approx(may_wait, rel=0.25)
    assert TARGET_S < PATIENCE_S < BURST_S
