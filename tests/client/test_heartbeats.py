"""Heartbeats come often enough for the grace, and from all clients at the same points in time.

White-box: the clock is an argument.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane_client._connect.heartbeats import beat_interval_s, until_next_beat_s


@given(st.floats(0.1, 3600.0), st.floats(0.0, 4e9))
def test_a_grace_has_room_for_two_heartbeats_that_are_lost(grace_s: float, wall_clock_s: float) -> None:
    pause_s = until_next_beat_s(grace_s, wall_clock_s)
    assert 0 < pause_s <= beat_interval_s(grace_s)
    assert 3 * pause_s <= grace_s * 1.000001


def test_clients_send_at_common_points_in_time() -> None:
    for wall_clock_s in (1000.0, 1000.1, 1000.499, 1000.5, 1000.9):
        at = wall_clock_s + until_next_beat_s(10.0, wall_clock_s)
        assert 2 * at == pytest.approx(round(2 * at))
        assert at - wall_clock_s > 2.8
