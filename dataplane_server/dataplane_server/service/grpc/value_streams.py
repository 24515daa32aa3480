"""How many streams carry values at the same time: over gRPC, where each holds some megabytes, and at the direct port,
where each holds a thread.

Others wait in order, and beyond a bound a stream is refused at once. Puts that have come with all of their values are
no such streams. Commits over gRPC have places of their own, so puts never hold them up.

At the direct port one address has a quarter of the places, so a host that does not move its values leaves the others
theirs. A quarter is 16, since all ranks of a host share it, and all hosts behind one address: so many streams carry
what a network can, and 128 more may wait for their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator

from dataplane_server.core.calls.refusal import Reason, Refusal

MAX_STREAMS = 64


class ValueStreams:
    """Places for `most` streams, and for most_waiting that wait. share: of both, the part that one caller may have."""

    def __init__(self, most: int = MAX_STREAMS, most_waiting: int = MAX_STREAMS, share: float = 1.0) -> None:
        self._most, self._most_of_one = most, int(most * share)
        self._most_waiting, self._most_waiting_of_one = most_waiting, int(most_waiting * share)
        self._held: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], str] = {}

    @contextlib.asynccontextmanager
    async def place(self, wait_s: float, caller: str = "") -> AsyncIterator[None]:
        """A block in which a stream is read or written. caller: whose share it takes. Refusal LIMIT_REACHED if there is
        no place within wait_s, in seconds.
        """
        if self._is_free(caller):
            self._held[caller] += 1
        else:
            await self._wait(wait_s, caller)
        try:
            yield
        finally:
            self._give_back(caller)

    async def _wait(self, wait_s: float, caller: str) -> None:
        if len(self._waiting) >= self._most_waiting or self._waiting_of(caller) >= self._most_waiting_of_one:
            raise self._full(caller)
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = caller
        try:
            await asyncio.wait([turn], timeout=wait_s)
        except asyncio.CancelledError:
            if turn.done():
                self._give_back(caller)
            raise
        finally:
            self._waiting.pop(turn, None)
        if not turn.done():
            raise self._full(caller)

    def _is_free(self, caller: str) -> bool:
        return self._held.total() < self._most and self._held[caller] < self._most_of_one

    def _give_back(self, caller: str) -> None:
        """Free a place, and give it to the first that may have it."""
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        turn = next((turn for turn, one in self._waiting.items() if self._is_free(one)), None)
        if turn is not None:
            self._held[self._waiting.pop(turn)] += 1
            turn.set_result(None)

    def _waiting_of(self, caller: str) -> int:
        return sum(one == caller for one in self._waiting.values())

    def _full(self, caller: str) -> Refusal:
        most, held, waiting, whose = self._most, self._held.total(), len(self._waiting), ""
        if self._most_of_one < most and self._held[caller] == self._most_of_one:
            most, held, waiting, whose = self._most_of_one, self._most_of_one, self._waiting_of(caller), f" of {caller}"
        message = f"{held} streams{whose} carry values already, and {waiting} wait: try again, with fewer at a time"
        return Refusal(Reason.LIMIT_REACHED, message, max_streams=most)


def network_of(host: str) -> str:
    """Whose share a peer at this address takes: an IPv4 address has its own, of IPv6 each network of a site (/64)."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None or address.version == 4:
        return str(mapped or address)
    return str(ipaddress.ip_network((address, 64), strict=False))
