"""Notices of set-up. They go to standard output, where the launchers that collect the output of ranks look for them."""

from __future__ import annotations


def report(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # the notices' documented place
