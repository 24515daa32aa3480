"""The session of a client: what it holds, by handles, which are numbers of its choice.

A hold lasts until the client releases its handle, or is gone; there are no timeouts. A client may release a handle
before the call that gives it a hold is served: then that hold ends at once.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

from dataplane_server.core.calls.refusal import Reason, Refusal

H = TypeVar("H")

_REMEMBERED_HANDLES = 4096


class Handles(ABC, Generic[H]):
    """The holds of one client. token: names its session."""

    def __init__(self, token: bytes | None = None) -> None:
        self.token = token or secrets.token_bytes(16)
        self._held: dict[int, H] = {}
        self._released: OrderedDict[int, None] = OrderedDict()  # before the calls that create them
        self._ended = False

    @property
    def writes(self) -> int:
        """How many reservations the client holds."""
        return 0

    @abstractmethod
    def _end(self, held: H) -> None:
        """Give back what was held."""

    def hold(self, handle: int, held: H) -> None:
        """Give a handle to a hold. If the handle is in use or was released, end the hold and refuse."""
        unwanted = self._ended or handle in self._released
        if not unwanted and handle not in self._held:
            self._held[handle] = held
            return
        self._released.pop(handle, None)
        self._end(held)
        message = f"handle {handle} {'was released' if unwanted else 'is in use already'}"
        raise Refusal(Reason.INVALID_REQUEST, message, handle=handle)

    def release(self, handles: Iterable[int]) -> None:
        """End the holds of handles. Unknown handles are remembered, so that a later `hold` of them is refused."""
        for handle in handles:
            held = self._held.pop(handle, None)
            if held is not None:
                self._end(held)
            else:
                self._released[handle] = None
        while len(self._released) > _REMEMBERED_HANDLES:
            self._released.popitem(last=False)

    def end(self) -> None:
        """End every hold, when the client is gone."""
        self._ended = True
        self.release(list(self._held))
