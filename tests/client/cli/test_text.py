"""Numbers as text.

White-box: the numbers are chosen.
"""

from __future__ import annotations

import pytest

from dataplane_client.cli._text import age_text, bar_text, duration_text, printable, rate_text, size_text


def test_numbers_have_a_unit_and_about_three_digits() -> None:
    sizes = (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")
    assert [(size, size_text(size)) for size, _ in sizes] == [*sizes]
    durations = (3.9, "3 s"), (61, "1 min 1 s"), (7322, "2 h 2 min")
    assert [(seconds, duration_text(seconds)) for seconds, _ in durations] == [*durations]
    ages = (None, "-"), (0.04, "0.0 s"), (9.94, "9.9 s"), (12.5, "12 s")
    assert [(seconds, age_text(seconds)) for seconds, _ in ages] == [*ages]
    rates = (None, "-"), (0, "0"), (0.26, "0.26"), (0.004, "<0.01"), (12.34, "12.3"), (1234.5, "1,234")
    assert [(rate, rate_text(rate, 1)) for rate, _ in rates] == [*rates]
    assert rate_text(2.5e6, 1e6) == "2.5"


@pytest.mark.parametrize(
    ("fraction", "cells", "percent"),
    [(0, 0, "0"), (0.5, 10, "50"), (0.999, 19, "99"), (1, 20, "100"), (1.5, 20, "100")],
)
def test_a_bar_is_full_only_at_100_percent(fraction: float, cells: int, percent: str) -> None:
    text = bar_text(fraction)
    assert (text.count("#"), text.count("."), text.split()[-2]) == (cells, 20 - cells, percent)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train 中文 é", "train 中文 é"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\nb\r", r"a\nb\r"),
        ("\u202edesrever\u200b", r"\u202edesrever\u200b"),
        ("\x9b31m", r"\x9b31m"),
    ],
    ids=["letters", "escapes", "lines", "directions", "one-byte-escapes"],
)
def test_what_acts_on_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown
