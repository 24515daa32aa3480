"""A data plane that records its calls, and replays them to a fresh one: the law that calls are all that changes it."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.digest import digest

A = TypeVar("A")


class RecordedPlane(DataPlane):
    """`turns`: time, call, and a hash of answer and effects, for every call since the plane was made."""

    def __init__(self, limits: Limits | None = None, *, incarnation: str = "c", first_generation: int = 1) -> None:
        super().__init__(limits, incarnation=incarnation, first_generation=first_generation)
        self._fresh = partial(DataPlane, limits, incarnation=incarnation, first_generation=first_generation)
        self.turns: list[tuple[float, Call[Any], str]] = []

    def apply(self, call: Call[A], now: float) -> A:
        before, kept = len(self._state.effects), deepcopy(call)  # tests change their lists
        try:
            answer = super().apply(call, now)
        except Refusal as refusal:
            self.turns.append((now, kept, digest(refusal, self._state.effects[before:])))
            raise
        self.turns.append((now, kept, digest(answer, self._state.effects[before:])))
        return answer

    def check_replay(self) -> None:
        """A fresh plane is given the same calls: it answers, causes and ends as this one."""
        fresh = self._fresh()
        for number, (now, call, expected) in enumerate(self.turns):
            try:
                outcome: object = fresh.apply(call, now)
            except Refusal as refusal:
                outcome = refusal
            effects = fresh.take_effects()
            assert digest(outcome, effects) == expected, f"turn {number}: {call}: now {outcome!r} and {effects!r}"
        self.take_effects()
        assert fresh.digest() == self.digest()
