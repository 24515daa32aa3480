"""What one check has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Check:
    """One check. A problem keeps clients from working; with a warning they work, but worse than they could.

    found: what is there, one sentence. advice: what to do about it; empty where nothing is to be done.
    """

    name: str
    outcome: Outcome
    found: str
    advice: str = ""
