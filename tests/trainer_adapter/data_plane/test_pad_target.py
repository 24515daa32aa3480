"""One width for a step: chosen once, kept by its parts, a multiple of every divisor."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.pad_target import pad_target, with_pad_target

KEY = "global_forward_pad_seqlen"


def meta_of(lengths: list[int] | None, **extra_info: Any) -> KVBatchMeta:
    rows = 2 if lengths is None else len(lengths)
    return KVBatchMeta("p", "train", [f"s{row}" for row in range(rows)], None, lengths, extra_info)


def test_the_width_is_the_least_that_holds_the_longest_row_and_that_both_multiples_divide() -> None:
    for longest, multiple, rounding in itertools.product((0, 1, 7, 8, 13, 65), (1, 4, 6, 8, 64), (1, 4, 8, 64)):
        meta = with_pad_target(meta_of([0, longest]), pad_to_multiple=multiple, sequence_length_round=rounding)
        least = next(width for width in itertools.count(max(longest, 1)) if width % multiple == width % rounding == 0)
        assert meta.extra_info[KEY] == least, (longest, multiple, rounding)


@pytest.mark.parametrize(("held", "width"), [(5, 8), (8, 8), (16, 16), (18, 20)])
def test_a_width_of_the_first_write_is_widened_but_never_narrowed(held: int, width: int) -> None:
    assert pad_target(with_pad_target(meta_of([3, 5], **{KEY: held}), pad_to_multiple=4)) == width


@pytest.mark.parametrize(
    ("meta", "arguments", "fragment"),
    [
        (meta_of([]), {"pad_to_multiple": 1}, "'p': .*rows"),
        (meta_of(None), {"pad_to_multiple": 1}, "sequence_lengths"),
        (meta_of([1]), {"pad_to_multiple": 0}, "pad_to_multiple .*0"),
        (meta_of([1]), {"pad_to_multiple": 1, "sequence_length_round": 0}, "sequence_length_round"),
        (meta_of([1], **{KEY: "8"}), {"pad_to_multiple": 1}, f"'{KEY}'] must be a number of tokens, got '8'"),
        (meta_of([1], **{KEY: True}), {"pad_to_multiple": 1}, "got True"),
    ],
)
def test_what_gives_no_width_is_refused(meta: KVBatchMeta, arguments: dict[str, int], fragment: str) -> None:
    with pytest.raises(ValueError, match=fragment.replace("[", r"\[").replace("]", r"\]")):
        with_pad_target(meta, **arguments)
