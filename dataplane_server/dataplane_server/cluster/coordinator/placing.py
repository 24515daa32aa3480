"""On which node a call is made: its values go there, and its claims prefer the rows of that node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from dataplane_server.core.calls.requests import Call, ClaimSamples, ClaimShard, CommitClaim, PutSamples
from dataplane_server.service.shell import A, Shell

_current: ContextVar[int] = ContextVar("node", default=0)


@contextlib.contextmanager
def acting_on(node: int) -> Iterator[None]:
    """A block that serves a call of a client on this node."""
    before = _current.set(node)
    try:
        yield
    finally:
        _current.reset(before)


class PlacingShell(Shell):
    """A shell whose calls name their nodes. home: the coordinator's own, for calls from outside of the cluster."""

    home = 0

    def apply(self, call: Call[A]) -> A:
        placed: Any = call
        if isinstance(call, (PutSamples, CommitClaim)):
            placed = replace(call, node=_current.get() or self.home)
        elif isinstance(call, (ClaimSamples, ClaimShard)) and _current.get():
            placed = replace(call, node=_current.get())
        return super().apply(placed)  # type: ignore[no-any-return]
