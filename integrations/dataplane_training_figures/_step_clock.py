"""How long a training step waits for the data plane: to claim, to read, to write back and to commit.

The clock observes the calls of the thread that entered it, whatever client makes them. Rows that another thread
prefetches cost a step only the wait for them, which `StepClock.waiting` counts. Under asyncio a call counts until it
ends, also while other tasks work. While several calls are under way, the time counts for the one that began first.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from dataplane_client.observe import Call, Observer, add, remove

_KINDS = {"ClaimSamples": "claim", "ClaimShard": "claim", "DrawSamples": "claim", "ReadColumns": "read"}
_KINDS |= {"PutSamples": "write", "CommitClaim": "commit", "ReleaseClaim": "commit"}
_ALL = (*dict.fromkeys(_KINDS.values()), "other_calls", "rest")


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, or of several that were added, such as those of all ranks, by what they were spent on: claim,
    read, write, commit, other_calls, and the rest, which is no call.
    """

    steps: int
    seconds: Mapping[str, float]

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(self.steps + other.steps, {kind: s + other.seconds[kind] for kind, s in self.seconds.items()})

    def as_metrics(self, partition: str = "") -> dict[str, float]:
        """`dataplane/step/seconds`, the mean of the steps, and shares of it: `dataplane/step/claim_share` and so on,
        and `data_plane_share` of all calls. With a partition `dataplane/train/step/...`.
        """
        total = sum(self.seconds.values())
        shares = {f"{kind}_share": seconds / (total or math.nan) for kind, seconds in self.seconds.items()}
        figures = {"seconds": total / self.steps, "data_plane_share": 1 - shares["rest_share"], **shares}
        head = f"dataplane/{partition}" if partition else "dataplane"
        return {f"{head}/step/{name}": value for name, value in figures.items()}


class StepClock(Observer):
    """Measures one step after the other inside its `with` block, in one thread. now: the time in seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._thread: int | None = None

    def __enter__(self) -> StepClock:
        self._thread, self._last = threading.get_ident(), self._now()
        self._open: dict[object, str] = {}
        self._spent: dict[str, float] = defaultdict(float)
        add(self)
        return self

    def __exit__(self, *_: object) -> None:
        remove(self)
        self._thread = None

    def lap(self) -> StepTime:
        """End a step and begin the next. Returns the time since the lap before, or since the block began."""
        if not self._advance():
            raise RuntimeError("a StepClock must be used in its `with` block, by the thread that entered it")
        spent, self._spent = self._spent, defaultdict(float)
        return StepTime(1, {kind: spent[kind] for kind in _ALL})

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as a claim: the wait for a loader's next batch, or for the rank that reads for others."""
        mark = object()
        if self._advance():
            self._open[mark] = "claim"
        try:
            yield
        finally:
            self.ended(mark)

    def began(self, call: Call) -> None:
        if self._advance():
            self._open[call] = _KINDS.get(call.verb, "other_calls")

    def ended(self, call: object) -> None:
        if self._advance():
            self._open.pop(call, None)

    def _advance(self) -> bool:
        """Count the time since the last event; False in another thread."""
        if threading.get_ident() != self._thread:
            return False
        now = self._now()
        self._spent[next(iter(self._open.values()), "rest")] += now - self._last
        self._last = now
        return True
