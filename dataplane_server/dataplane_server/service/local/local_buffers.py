"""What the server holds for peers of local sockets that send half a request or do not read their responses.

A peer that sends a request and reads its response holds bytes for a moment. When all connections together hold more
than a bound, those that have held some for longest are closed until the others fit. So peers that stop half-way cannot
fill the server's memory, and lose their own connections, not those of others.
"""

from __future__ import annotations

from typing import Protocol

from dataplane_server.log import get_log

MAX_BUFFERED_BYTES = 256 << 20
"""Of all connections together."""


class Holder(Protocol):
    """A connection."""

    def close(self) -> None: ...


class LocalBuffers:
    """Bytes held, by connection, in the order in which the connections began to hold some."""

    def __init__(self, most_bytes: int = MAX_BUFFERED_BYTES) -> None:
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._held: dict[Holder, int] = {}
        self._log = get_log()

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """The connection holds this many bytes from now on."""
        self.held_bytes += size_bytes - self._held.get(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes
        else:
            self._held.pop(holder, None)
        while self.held_bytes > self._most_bytes:
            oldest = next(iter(self._held))
            self._log.warning("local_peer_stalled", bytes=self._held[oldest], most_bytes=self._most_bytes)
            self.hold(oldest, 0)
            oldest.close()
