"""Names and numbers that callers hand in: what would travel as something else is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dataplane_client._arguments import (
    checked_count,
    checked_generations,
    checked_lengths,
    checked_name,
    checked_names,
    checked_seconds,
    one_or_more,
)
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError


@pytest.mark.parametrize(
    "names", [["a", "b"], ("a", "b"), {"a": 1, "b": 2}, iter(["a", "b"])], ids=["list", "tuple", "mapping", "iterator"]
)
def test_names_come_in_any_iterable(names: Sequence[str]) -> None:
    assert checked_names("field name", names, "here") == ["a", "b"]


def test_a_str_is_not_taken_for_its_letters() -> None:
    with pytest.raises(UnsupportedTypeError, match="here: field names must be a sequence of str, got the str 'ab'"):
        checked_names("field name", "ab", "here")
    assert one_or_more("field name", "ab", "here") == ["ab"]


@pytest.mark.parametrize("name", [1, None, b"a", ["a"]], ids=repr)
def test_a_name_is_a_str(name: object) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"here: a task name must be a str, got {type(name).__name__}"):
        checked_name("task name", name, "here")  # type: ignore[arg-type]


def test_a_name_without_utf_8_form_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"here: task name .* cannot be encoded as UTF-8"):
        checked_name("task name", "a\udfff", "here")


@pytest.mark.parametrize("count", [3, np.int32(3), torch.tensor(3)], ids=repr)
def test_a_count_is_anything_that_is_an_integer(count: int) -> None:
    assert checked_count("rows", count, "here", least=1, most=5) == 3


@pytest.mark.parametrize("count", [3.0, "3", None, np.float64(3)], ids=repr)
def test_a_count_of_another_type_is_refused(count: object) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"here: rows must be an int, got {type(count).__name__}"):
        checked_count("rows", count, "here", least=1, most=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 6, -1, 1 << 70], ids=str)
def test_a_count_outside_its_bounds_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"here: rows must be 1 to 5, got {count}"):
        checked_count("rows", count, "here", least=1, most=5)


@pytest.mark.parametrize("lengths", [[1, -1], np.array([1, -1]), torch.tensor([1, -1])], ids=repr)
def test_lengths_come_as_list_array_or_tensor(lengths: Sequence[int]) -> None:
    assert checked_lengths(lengths, ["a", "b"], "here") == [1, -1]


def test_no_lengths_stay_none() -> None:
    assert checked_lengths(None, ["a"], "here") is None


@pytest.mark.parametrize("lengths", [[1.0, 2], torch.tensor([1.5, 2.0]), ["1", 2], [None, 1]], ids=repr)
def test_lengths_are_not_rounded(lengths: Sequence[int]) -> None:
    with pytest.raises(UnsupportedTypeError, match="here: sequence_lengths must be ints"):
        checked_lengths(lengths, ["a", "b"], "here")


@pytest.mark.parametrize("length", [-2, 1 << 31, 1 << 70], ids=str)
def test_a_length_out_of_range_is_refused_naming_the_sample(length: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"here: sample 'b': sequence length must be -1 to .*, got {length}"):
        checked_lengths([1, length], ["a", "b"], "here")


def test_generations_are_those_of_a_meta_or_none() -> None:
    assert checked_generations(None, ["a", "b"], "here") is None
    assert checked_generations([1, (1 << 63) - 1], ["a", "b"], "here") == [1, (1 << 63) - 1]


@pytest.mark.parametrize(
    ("generations", "error", "message"),
    [
        ([1], InvalidArgumentError, "here: 1 generations, but the call names 2 samples"),
        ([1, 2.0], UnsupportedTypeError, "here: generations must be ints"),
        ([1, -1], InvalidArgumentError, "here: a generation must be 0 to"),
        ([1, 1 << 63], InvalidArgumentError, "here: a generation must be 0 to"),
    ],
    ids=str,
)
def test_other_generations_are_refused(generations: list[int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checked_generations(generations, ["a", "b"], "here")


@pytest.mark.parametrize(("seconds", "nanoseconds"), [(0, 0), (1.5, 1_500_000_000)])
def test_seconds_travel_in_nanoseconds(seconds: float, nanoseconds: int) -> None:
    assert checked_seconds("delay_s", seconds, "here") == nanoseconds


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")], ids=str)
def test_seconds_are_finite_and_not_negative(seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="here: delay_s must be 0 to"):
        checked_seconds("delay_s", seconds, "here")
