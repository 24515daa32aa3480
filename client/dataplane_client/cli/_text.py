"""Numbers and names as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

REPLAY_FOLDER = "replay-"
"""How the folder of a replay's socket begins; the socket is named by the moment."""
_BAR_CELLS = 20


def server_text(address: str) -> str:
    """The address, or which moment of a replay answers there."""
    path = PurePath(address)
    return f"replay at {path.name}" if path.parent.name.startswith(REPLAY_FOLDER) else address


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def age_text(seconds: float | None) -> str:
    """A duration, with tenths of a second below 10 s; "-" for None."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds < 10 else duration_text(seconds)


def count_text(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def rate_text(per_second: float | None, unit: float = 1.0) -> str:
    """A rate in units a second, to about three digits; "-" for None. Only a rate of zero reads "0"."""
    if per_second is None:
        return "-"
    rate = per_second / unit
    if 0 < rate < 0.01:
        return "<0.01"
    return f"{rate:,.0f}" if rate >= 100 or not rate else f"{rate:.1f}" if rate >= 1 else f"{rate:.2f}"


def counts_text(counts: Mapping[str, int]) -> str:
    """The counts that are not zero, with their names."""
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count) or "none"


def tags_text(tags: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in tags.items())


def bar_text(fraction: float) -> str:
    """A fraction as a bar and in percent. The bar is full only at 1: 99.9 % leaves a cell empty."""
    shown = min(max(fraction, 0.0), 1.0)
    cells = int(shown * _BAR_CELLS)
    return f"[{'#' * cells}{'.' * (_BAR_CELLS - cells)}] {int(shown * 100):3} %"


def printable(text: str) -> str:
    """The text with escapes in the place of what would act on a terminal: control characters, marks of direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """nouns: the plural, if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"
