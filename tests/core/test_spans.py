"""Spans give back the numbers that they were made of, and take little room where those follow one another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.caller import int64

from dataplane_server.core.state.spans import Spans


@given(st.lists(st.integers(-5, 5) | st.integers(-(1 << 60), 1 << 60), max_size=30))
def test_numbers_come_back_as_they_were(numbers: list[int]) -> None:
    assert Spans(int64(numbers)).numbers().tolist() == numbers


@pytest.mark.parametrize("count", [1, 65_536])
def test_numbers_that_follow_one_another_take_16_bytes(count: int) -> None:
    numbers = np.arange(7, 7 + count)
    assert Spans(numbers).size_bytes == 16
    assert Spans(numbers).numbers().tolist() == numbers.tolist()


def test_no_numbers_take_no_bytes() -> None:
    assert Spans(int64([])).size_bytes == 0
