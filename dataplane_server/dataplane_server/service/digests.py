"""Digests of values that are put once: XXH3-128 of their bytes in the arena, right before FinishWrite.

The core takes equal digests for equal bytes. XXH3 does not resist forgers, who gain nothing: every client may replace
any row. Hashing takes 0.1 to 0.2 s a GB. Many bytes are hashed in a thread, while other calls go on.
"""

from __future__ import annotations

import asyncio

from xxhash import xxh3_128_digest

from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.plane import DataPlane
from dataplane_server.storage.arena import Arena

_LONG_BYTES = 4 << 20


class Digests:
    """Of the writes of one core."""

    def __init__(self, plane: DataPlane, arena: Arena) -> None:
        self._plane = plane
        self._arena = arena

    def of(self, ticket: int) -> bytes | asyncio.Future[bytes]:
        """What FinishWrite needs for a write whose bytes are in place. If the write ends meanwhile, any bytes."""
        layout = self._plane.once_layout(ticket)
        if layout is None:
            return b""
        if int(layout[1].sum()) <= _LONG_BYTES:
            return self._hash(*layout)
        return asyncio.get_running_loop().run_in_executor(None, self._hash, *layout)

    def _hash(self, offsets: Int64Array, sizes: Int64Array) -> bytes:
        memory, places = self._arena.memory, zip(offsets.ravel().tolist(), sizes.ravel().tolist(), strict=True)
        return b"".join([xxh3_128_digest(memory[offset : offset + size]) for offset, size in places])
