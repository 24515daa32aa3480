"""Faults that a client hides: its tests pass through a proxy with any of them (`make test-faults`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tests.integration.faults.proxy import BOTH, FaultProxy

Reach = Callable[[str], str]


def latency(proxy: FaultProxy) -> None:
    """All bytes come 5 ms later, so an answer comes 10 ms later."""
    proxy.delay_s = dict.fromkeys(BOTH, 0.005)


def slices(proxy: FaultProxy) -> None:
    """All bytes come in pieces of 1 to 17."""
    proxy.slices = set(BOTH)


def resets(proxy: FaultProxy) -> None:
    """Connections are reset again and again, each time after twice as many bytes as before."""
    proxy.cut_after = {"requests": 600, "answers": 900}
    proxy.cuts_left, proxy.cut_growth = 1_000, 2


HARMLESS = {fault.__name__: fault for fault in (latency, slices, resets)}


@contextlib.contextmanager
def reach_through(fault: str) -> Iterator[Reach]:
    """A function that returns the address of a proxy with this fault for that of a server, or what it is given if no
    fault is named or the server listens to a Unix socket. Raises KeyError for a fault that is not in HARMLESS.
    """
    proxies: dict[str, FaultProxy] = {}

    def reach(address: str) -> str:
        if not fault or address.startswith("unix:"):
            return address
        if address not in proxies:
            proxies[address] = FaultProxy(address)
            HARMLESS[fault](proxies[address])
        return proxies[address].address

    yield reach
    for proxy in proxies.values():
        proxy.close()
