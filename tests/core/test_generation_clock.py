"""Ages of rows out of a log that keeps nothing for a row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane_server.core.rows.generations import GenerationClock


@given(st.lists(st.floats(0.0, 40.0), min_size=1, max_size=200))
def test_an_age_is_never_too_small_and_at_most_a_second_too_great(pauses: list[float]) -> None:
    clock, now = GenerationClock(), 0.0
    born = []
    for pause in pauses:
        now += pause
        clock.record(now)
        born.append((clock.take(2).tolist()[1], now))
    for generation, at in born:
        assert -1e-9 <= clock.age(generation, now) - (now - at) <= 1.0


@pytest.mark.parametrize("every_s", [1.0, 7.0, 600.0])
def test_years_of_rows_leave_a_short_log_and_ages_exact_to_a_hundredth(every_s: float) -> None:
    clock, born, now = GenerationClock(), [], 0.0
    for _ in range(40_000):
        now += every_s
        clock.record(now)
        born.append((int(clock.take(1)[0]), now))
    assert len(clock._times) <= 4096
    for generation, at in born[::97]:
        age = now - at
        assert age - 1e-6 <= clock.age(generation, now) <= age + max(1.0, 0.011 * age) + every_s


def test_a_clock_that_does_not_run_yet_or_stands_still_or_goes_back_does_no_harm() -> None:
    clock = GenerationClock()
    assert clock.age(int(clock.take(1)[0]), 100.0) == 0.0
    clock.record(10.0)
    first = int(clock.take(1)[0])
    clock.record(3.0)
    second = int(clock.take(1)[0])
    assert clock.age(first, 12.0) == 2.0
    assert clock.age(second, 9.0) == 0.0
