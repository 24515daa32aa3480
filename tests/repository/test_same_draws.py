"""Two runs of the tests draw the same, unless a run is asked to explore."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st


def drawn() -> list[int]:
    numbers: list[int] = []

    @given(st.integers())
    def examples(number: int) -> None:
        numbers.append(number)

    examples()
    return numbers


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE", "quick") != "quick", reason="it explores")
def test_examples_are_the_same_in_each_run() -> None:
    first = drawn()
    assert len(first) > 50
    assert first == drawn()


def test_global_generators_begin_each_test_with_the_same_numbers() -> None:
    assert random.random() == random.Random(0).random()
    assert np.random.random() == np.random.RandomState(0).random()
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
