"""Claims and reserved groups that the gateway holds for a caller, each for as long as the caller shows life.

The session of the caller's client holds them, and sends heartbeats. So if the gateway dies, the server returns the
rows. If no request names a claim or group for `lease_s`, the gateway gives it up: the rows of the claim return as a
failed delivery, the group is removed. A later call in its name gets CLAIM_FENCED or GROUP_FENCED, from the gateway as
from the server. But the finish of a group that the server has ended asks the server, which may have committed it at its
deadline. What has ended is remembered, so that a commit, release, finish or abort that is repeated gets the first
answer. Another one than that which ended it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dataplane_client.aio import AsyncClaim, AsyncGroup
from dataplane_client.errors import (
    ClaimFencedError,
    ClaimNotFoundError,
    DataPlaneError,
    GroupFencedError,
    OutOfSpaceError,
    PermissionDeniedError,
)

MAX_HELD = 1024
MAX_ENDED = 4096

Handle = TypeVar("Handle", AsyncClaim, AsyncGroup)
Fenced = ClaimFencedError | GroupFencedError


@dataclass
class Hold(Generic[Handle]):
    """until: by time.monotonic(). users: requests under way that name it, during which it does not end by itself."""

    handle: Handle
    lease_s: float
    until: float
    users: int = 0
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)


class Held(Generic[Handle]):
    """Claims by claim_id, or groups by reservation_id."""

    def __init__(self, what: str, fenced: type[Fenced], give_up: Callable[[Handle, str], Awaitable[int]]) -> None:
        """what: is held. fenced: the error of what is lost. give_up: ends one, and says why."""
        self._what, self._fenced = what, fenced
        self._give_up: Callable[[Handle, str], Awaitable[int]] = give_up
        self._holds: dict[str, Hold[Handle]] = {}
        self._coming = 0
        self._ended: OrderedDict[str, tuple[str, int] | Fenced] = OrderedDict()  # or the verb and its answer
        self._under_way: set[asyncio.Task[int]] = set()

    @property
    def is_empty(self) -> bool:
        return not self._holds

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """A block that asks for one more. Raises OutOfSpaceError."""
        if len(self._holds) + self._coming >= MAX_HELD:
            message = f"the gateway holds {MAX_HELD} {self._what}s for this caller; end some, or let them expire"
            raise OutOfSpaceError(message, reason="LIMIT_REACHED", details={"max_held": str(MAX_HELD)})
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    def add(self, key: str, handle: Handle, lease_s: float) -> None:
        self._holds[key] = Hold(handle, lease_s, time.monotonic() + lease_s)

    @contextlib.contextmanager
    def using(self, key: str, *, finishes: bool = False) -> Iterator[Hold[Handle]]:
        """A block that needs what is held; its lease begins anew at the end. Raises the error with which it was lost,
        or ClaimNotFoundError or GroupFencedError. finishes: the block finishes a group, perhaps one that was lost.
        """
        hold, lost = self._holds.get(key), self._ended.get(key)
        if isinstance(lost, self._fenced) and not (finishes and hold):
            raise self._fenced(lost.message, reason=lost.reason)
        if hold is None:
            message = f"the gateway holds no {self._what} {key!r}: it has ended, or the gateway was started since then"
            if self._fenced is ClaimFencedError:
                raise ClaimNotFoundError(message, reason="CLAIM_NOT_FOUND")
            raise GroupFencedError(message, reason="GROUP_FENCED")
        hold.users += 1
        try:
            yield hold
        except self._fenced as error:
            if key in self._holds and key not in self._ended:
                self._note(key, self._fenced(error.message, reason=error.reason))  # without frames, which have the body
            if finishes or self._fenced is ClaimFencedError:  # a group is kept for its finish, which asks the server
                self._holds.pop(key, None)
            raise
        finally:
            hold.users -= 1
            hold.until = time.monotonic() + hold.lease_s

    async def end(self, key: str, verb: str, work: Callable[[Handle], Awaitable[int]]) -> int:
        """Do what ends it, also if the caller hangs up meanwhile. Returns how many rows that concerned; if this verb
        has ended it already, the same again. Raises as `using`, and what the client raises after another verb.
        """
        if (rows := self._answer(key, verb)) is not None:
            return rows
        task = asyncio.create_task(self._end(key, verb, work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _end(self, key: str, verb: str, work: Callable[[Handle], Awaitable[int]]) -> int:
        with self.using(key, finishes=verb == "finish") as hold:
            async with hold.ending:
                if (rows := self._answer(key, verb)) is None:
                    rows = await work(hold.handle)
                    self._forget(key, (verb, rows))
        return rows

    def _answer(self, key: str, verb: str) -> int | None:
        ended = self._ended.get(key)
        return ended[1] if isinstance(ended, tuple) and ended[0] == verb else None

    def _forget(self, key: str, outcome: tuple[str, int] | Fenced) -> None:
        if self._holds.pop(key, None) is not None:
            self._note(key, outcome)

    def _note(self, key: str, outcome: tuple[str, int] | Fenced) -> None:
        self._ended[key] = outcome
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    async def sweep(self) -> None:
        """Give up what no request has named for its lease. Raises PermissionDeniedError when the caller may not."""
        now = time.monotonic()
        for key, hold in list(self._holds.items()):
            if not hold.users and now >= hold.until:
                if key in self._ended:  # a group that the server has ended
                    del self._holds[key]
                    continue
                why = f"no request named it for {hold.lease_s:g} s"
                lost = f"{self._what} {key!r} is lost: {why}, so its rows are given up"
                self._forget(key, self._fenced(lost, reason=f"{self._what.upper()}_FENCED"))
                try:
                    await self._give_up(hold.handle, why)
                except PermissionDeniedError:
                    raise
                except self._fenced as ended:  # the server had ended it before
                    self._note(key, self._fenced(ended.message, reason=ended.reason))
                except DataPlaneError:
                    pass
