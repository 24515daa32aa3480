"""What a run found, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from dataplane_conformance.lab import Outcome


def line(outcome: Outcome) -> str:
    """One promise: the verdict, then counts of rows; below it why it is broken and which rows were lost or doubled."""
    counts = [len(outcome.tried), len(outcome.acknowledged), len(outcome.lost), len(outcome.doubled)]
    untried = outcome.verdict in ("not offered", "not tried")
    figures = "" if untried else "".join(f"{count:>8}" for count in counts) + f"{outcome.seconds:8.1f}"
    text = f"{outcome.promise:<64}{outcome.verdict:<12}{figures}".rstrip()
    notes = [outcome.because] if outcome.because else []
    notes += [f"{kind}: {_some(ids)}" for kind, ids in (("lost", outcome.lost), ("doubled", outcome.doubled)) if ids]
    return "\n".join([text, *(f"    {note}" for note in notes)])


def head() -> str:
    """The columns of `line`."""
    return f"{'promise':<64}{'verdict':<12}" + "".join(
        f"{name:>8}" for name in ("tried", "acked", "lost", "doubled", "s")
    )


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")


def as_json(system: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """All that is known, every row by name."""
    return {"system": system, "promises": [asdict(outcome) for outcome in outcomes]}
