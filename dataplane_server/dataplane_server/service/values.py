"""The bytes of values, for calls that write and read them.

Values that are put once are known by their digests: XXH3-128 of their bytes, taken right before FinishWrite. The core
takes equal digests for equal bytes. XXH3 does not resist forgers, who gain nothing: every client may replace any row.
Hashing takes 0.1 to 0.2 s a GB. Many bytes are hashed in a thread, while other calls go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from functools import partial

from xxhash import xxh3_128_digest

from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation, Stored, Waiting
from dataplane_server.core.calls.requests import CommitClaim, PutSamples, StoreValues
from dataplane_server.core.calls.values import Int64Array, Run, Runs
from dataplane_server.core.plane import DataPlane
from dataplane_server.service.messages.frames import SENT_CHUNK_BYTES, read_frames
from dataplane_server.service.shell import Shell
from dataplane_server.storage.arena import Arena, RunWriter, in_chunks, pieces
from rl_dataplane.v1 import data_plane_pb2 as pb

MAX_INLINE_BYTES = 1 << 20
"""Of values at hand that are written at once, while other calls wait."""
_LONG_BYTES = 4 << 20

Write = PutSamples | CommitClaim
Begun = PutResult | CommitResult | Stored | Reservation | Waiting


class Values:
    """The values in the arena of this process. stored_at_once: whether a write may be applied before its values are in
    place, if they follow at once.
    """

    stored_at_once = True

    def __init__(self, plane: DataPlane, arena: Arena) -> None:
        self._plane = plane
        self._arena = arena

    def writer(self, runs: Sequence[Run]) -> RunWriter:
        """Writes a stream of bytes to a reservation's runs."""
        return RunWriter(self._arena, runs)

    def pieces(self, runs: Runs) -> list[memoryview]:
        """The bytes of runs, one after another."""
        return pieces(self._arena, runs)

    def digests(self, reservation: Reservation) -> bytes | Awaitable[bytes]:
        """What FinishWrite needs for a write whose bytes are in place. If the write ends meanwhile, any bytes."""
        layout = self._plane.once_layout(reservation.ticket)
        if layout is None:
            return b""
        if int(layout[1].sum()) <= _LONG_BYTES:
            return digests_of(self._arena.memory, *layout)
        return asyncio.get_running_loop().run_in_executor(None, digests_of, self._arena.memory, *layout)

    def places(self, runs: Sequence[Run]) -> list[memoryview]:
        """The bytes of runs, to be written to."""
        return [self._arena.view(run) for run in runs]

    def complete(self, reservation: Reservation) -> None:
        """Copy what the rows have already, right before FinishWrite."""
        self._arena.copy(reservation.copies)

    async def frames(self, header: pb.ReadColumnsHeader, runs: Runs) -> AsyncIterator[bytes]:
        """The frames of a read's response."""
        for frame in read_frames(header, map(self.pieces, in_chunks(runs, SENT_CHUNK_BYTES))):
            yield frame


def begin_write(
    shell: Shell, values: Values, write: Write, at_hand: bytes | memoryview | None, digests: bytes
) -> Begun:
    """Begin a write. If its values are at hand (None: they are not) and few, it is over as well, unless it has to wait.
    digests: what its producer hashed of them.
    """
    if at_hand is None or len(at_hand) > MAX_INLINE_BYTES or not values.stored_at_once:
        return shell.apply(write)
    store = StoreValues(write, len(at_hand), value_digests=digests)
    return shell.store(store, partial(write_to, values, at_hand))


def write_to(values: Values, at_hand: bytes | memoryview, runs: Sequence[Run]) -> None:
    """Write values that are at hand to their runs."""
    cut_into(values.places(runs), at_hand)


def cut_into(places: Iterable[memoryview], values: bytes | bytearray | memoryview) -> None:
    """Write values to places that have their size, one after the other."""
    begin, source = 0, memoryview(values)
    for place in places:
        end = begin + len(place)
        place[:], begin = source[begin:end], end


def digests_of(memory: memoryview, offsets: Int64Array, sizes: Int64Array) -> bytes:
    """The digests of values, one after the other."""
    places = zip(offsets.ravel().tolist(), sizes.ravel().tolist(), strict=True)
    return b"".join([xxh3_128_digest(memory[offset : offset + size]) for offset, size in places])
