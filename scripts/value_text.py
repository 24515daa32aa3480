"""Format values for people, in Grafana's units."""

from __future__ import annotations

from collections.abc import Sequence

_Step = tuple[float, str]
_COUNTS: tuple[_Step, ...] = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"))
_BYTES: tuple[_Step, ...] = ((1, " B"), (2**10, " KiB"), (2**20, " MiB"), (2**30, " GiB"), (2**40, " TiB"))
_RATES: tuple[_Step, ...] = ((1, " B/s"), (1e3, " kB/s"), (1e6, " MB/s"), (1e9, " GB/s"))
_SECONDS: tuple[_Step, ...] = ((1e-6, " µs"), (1e-3, " ms"), (1, " s"), (60, " min"), (3600, " h"), (86400, " d"))
_STEPS = {"s": _SECONDS, "bytes": _BYTES, "Bps": _RATES}
_ENDINGS = {"rowsps": " rows/s", "reqps": " calls/s", "cps": "/s"}


def value_text(value: float, unit: str) -> str:
    """Format a value with its unit to three digits, such as "1.5 GiB" or "20 ms". unit: the name that Grafana uses."""
    if unit == "bool_yes_no":
        return "yes" if value else "no"
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    ending = unit.removeprefix("suffix:") if unit.startswith("suffix:") else _ENDINGS.get(unit, "")
    return _scaled(value, _STEPS.get(unit, _COUNTS)) + ending


def round_size(value: float, unit: str) -> float:
    """The size whose multiples are short to write for values up to `value`: 1024 for KiB, 60 for minutes."""
    return _reached(value, _STEPS.get(unit, _COUNTS))[0]


def _scaled(value: float, steps: Sequence[_Step]) -> str:
    size, name = _reached(value, steps)
    shown = value / size
    return f"{shown:.0f}{name}" if abs(shown) >= 100 else f"{shown:.3g}{name}"


def _reached(value: float, steps: Sequence[_Step]) -> _Step:
    """The largest step that the value reaches. For zero and values below the first step, the step of size 1."""
    reached = [step for step in steps if abs(value) >= step[0]]
    return reached[-1] if reached else next(step for step in steps if step[0] == 1)
