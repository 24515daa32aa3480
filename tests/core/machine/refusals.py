"""How the model says no."""

from __future__ import annotations

from dataplane_server.core.calls.refusal import Reason


class No(Exception):
    """The call is refused for one of these reasons."""

    def __init__(self, *reasons: Reason) -> None:
        super().__init__(*reasons)
        self.reasons = set(reasons)


def refuse_if(*grounds: tuple[bool, Reason]) -> None:
    """Refuse for whichever grounds there are: which of them is told is left to the plane."""
    if reasons := [reason for holds, reason in grounds if holds]:
        raise No(*reasons)
