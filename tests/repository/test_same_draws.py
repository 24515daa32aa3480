"""Two runs of the tests draw the same, unless a run is asked to explore."""

from __future__ import annotations

import importlib
import os
import random
from pathlib import Path

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


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE", "quick") != "quick", reason="it explores")
def test_examples_do_not_depend_on_what_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn()
    (tmp_path / "of_another_module.py").write_text(f"NUMBERS = {[1_000_003 * n for n in range(1, 99)]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("of_another_module")
    assert first == drawn()


def test_global_generators_begin_each_test_with_the_same_numbers() -> None:
    assert random.random() == random.Random(0).random()
    assert np.random.random() == np.random.RandomState(0).random()
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
