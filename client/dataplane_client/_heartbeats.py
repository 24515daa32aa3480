"""When a session's heartbeats are sent.

Three come within a grace, so two may be lost or late. All clients send at the same points of the wall clock, half a
second apart: a server of a thousand clients then finds many heartbeats each time it wakes up, and waking up costs it
more than reading them. A grace too short for that has them evenly.
"""

from __future__ import annotations

_BEATS_A_GRACE = 3
_POINTS_S = 0.5
_SHORT_S = 1.0


def beat_interval_s(grace_s: float) -> float:
    """The most that lies between two heartbeats, in seconds."""
    return grace_s / _BEATS_A_GRACE


def until_next_beat_s(grace_s: float, wall_clock_s: float) -> float:
    """Seconds from now, which is `wall_clock_s` by the wall clock, until the next heartbeat; always above 0."""
    interval_s = beat_interval_s(grace_s)
    if interval_s < _SHORT_S:
        return interval_s
    return interval_s - (wall_clock_s + interval_s) % _POINTS_S
