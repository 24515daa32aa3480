"""What a client of a node holds in the node's cache: copies of other nodes' bytes, by the handles of its reads.

What it holds of the server is in `service.local.local_session`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dataplane_server.cluster.node.cache import CachedRun
from dataplane_server.service.local.handles import Handles


class NodeSession(Handles[Sequence[CachedRun]]):
    """One attached client. token: names it to the coordinator. free: takes copies that it uses no more."""

    def __init__(self, token: bytes, free: Callable[[Iterable[CachedRun]], None]) -> None:
        super().__init__()
        self.token = token
        self._free = free

    def _end(self, held: Sequence[CachedRun]) -> None:
        self._free(held)
