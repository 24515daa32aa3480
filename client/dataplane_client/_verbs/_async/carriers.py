"""Where the values of frame calls are when they are not in messages: in memory that the server shares, or on the line.

A carrier also makes a connection one of its session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from google.rpc import status_pb2

from dataplane_client._common.arrays import Int64Array, int64s
from dataplane_client._connect.locator import RefusedError
from dataplane_client._memory.arena_writes import fill_and_hash_runs, fill_runs
from dataplane_client._memory.direct_port import DirectAddress, receive_values, send_values
from dataplane_client._memory.leased_views import leased_columns
from dataplane_client._memory.local_protocol import INLINE_BYTES, Address, request_frame
from dataplane_client._memory.placement import PlacedColumn, ReadBuffers
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._values.columns_layout import ColumnLayout
from dataplane_client._values.digests import digests_of
from dataplane_client._verbs._async.runtime import LocalConnection, Work, run_in_thread
from rl_dataplane.v1 import local_pb2 as pb

_LONG_COPY_BYTES = 2 << 20


class AsyncCarrier(ABC):
    """Of one session. address: where calls go. node_address: where bytes of other nodes are fetched. greeting: the
    first request on each connection. inline_bytes: values of up to this many bytes travel in messages. traces: whether
    requests may carry a trace context. notice_s: until a TCP connection to a host that is gone breaks. release:
    releases what the server holds under handles; None if that ends with its connection.
    """

    transport: Literal["shm", "direct"]
    address: Address
    node_address: Address
    greeting: bytes
    inline_bytes = INLINE_BYTES
    traces = False
    notice_s = 35
    release: Callable[..., None] | None = None

    @property
    def can_write(self) -> bool:
        """Whether the server takes values that are not in messages."""
        return True

    @abstractmethod
    def greeted(self, outcome: int, body: bytes) -> None:
        """Take the response to the greeting. OSError if the server does not serve this client."""

    @abstractmethod
    async def write(
        self, write: RowWrite, reservation: pb.ArenaRuns, finish: pb.FinishWriteRequest, left_s: float
    ) -> Work | None:
        """Copy values to their reservation, or return what sends them behind `finish`, which gets their digests.
        TimeoutError; ValueError if they do not fit.
        """

    def views(
        self, handle: int, lease: pb.ArenaRuns, layouts: Sequence[ColumnLayout], n_rows: int
    ) -> list[PlacedColumn] | None:
        """Leased values as views that own the lease; None if there can be none. ValueError if they do not fit."""
        return None

    @abstractmethod
    async def read(self, lease: pb.ArenaRuns, buffers: ReadBuffers, connection: LocalConnection, left_s: float) -> None:
        """Fill buffers with leased values. connection: by which the lease came. OSError, EOFError; ValueError if the
        values do not fit.
        """


class AsyncArenaCarrier(AsyncCarrier):
    """Memory of this host to which a client has attached. caller_proof: of the server's status."""

    transport = "shm"
    notice_s = 10

    def __init__(self, arena: SharedArena, caller_proof: bytes = b"") -> None:
        self.arena = arena
        self.address = arena.calls_at or arena.address
        self.node_address = arena.address
        joining = pb.JoinRequest(session=arena.token, caller_proof=caller_proof)
        self.greeting = request_frame(pb.LOCAL_METHOD_JOIN, joining)
        self.inline_bytes = arena.inline_bytes
        self.traces = arena.traces
        self.release = arena.release

    @property
    def can_write(self) -> bool:
        return self.arena.can_write

    def greeted(self, outcome: int, body: bytes) -> None:
        if outcome == pb.LOCAL_OUTCOME_ERROR:
            raise ConnectionResetError("the server has ended the session")

    async def write(
        self, write: RowWrite, reservation: pb.ArenaRuns, finish: pb.FinishWriteRequest, left_s: float
    ) -> None:
        await _copy(partial(self._fill, write, reservation, finish), write.size_bytes, left_s)

    def _fill(self, write: RowWrite, reservation: pb.ArenaRuns, finish: pb.FinishWriteRequest) -> None:
        runs = _places(reservation)
        if write.header.hashed:
            finish.digests = fill_and_hash_runs(self.arena.writable, *runs, write.columns, write.n_rows)
        else:
            fill_runs(self.arena.writable, *runs, write.columns)

    def views(
        self, handle: int, lease: pb.ArenaRuns, layouts: Sequence[ColumnLayout], n_rows: int
    ) -> list[PlacedColumn] | None:
        return leased_columns(self.arena, handle, layouts, n_rows, *_places(lease))

    async def read(self, lease: pb.ArenaRuns, buffers: ReadBuffers, connection: LocalConnection, left_s: float) -> None:
        await _copy(partial(buffers.copy_runs, self.arena.readable, *_places(lease)), buffers.size_bytes, left_s)


class AsyncLineCarrier(AsyncCarrier):
    """A direct port."""

    transport = "direct"

    def __init__(self, port: DirectAddress) -> None:
        self.address = self.node_address = (port.host, port.port)
        self.greeting = request_frame(pb.LOCAL_METHOD_DIRECT, pb.DirectRequest(nonce=port.nonce))

    def greeted(self, outcome: int, body: bytes) -> None:
        if outcome == pb.LOCAL_OUTCOME_ERROR:
            raise RefusedError(status_pb2.Status.FromString(body).message)
        self.traces = pb.DirectResponse.FromString(body).traces

    async def write(
        self, write: RowWrite, reservation: pb.ArenaRuns, finish: pb.FinishWriteRequest, left_s: float
    ) -> Work:
        if write.header.hashed:
            finish.digests = write.header.digests or digests_of(write.columns, write.n_rows)
        return partial(send_values, write.columns)

    async def read(self, lease: pb.ArenaRuns, buffers: ReadBuffers, connection: LocalConnection, left_s: float) -> None:
        await connection.use(partial(receive_values, connection.take_rest(), buffers), left_s)


def _places(runs: pb.ArenaRuns) -> tuple[Int64Array, Int64Array]:
    return int64s(runs.offsets), int64s(runs.sizes)


async def _copy(copy: Callable[[], None], size_bytes: int, left_s: float) -> None:
    """Copy, in a thread if it takes longer than a call, so that the event loop goes on."""
    if size_bytes > _LONG_COPY_BYTES:
        await run_in_thread(copy, timeout_s=left_s)
    else:
        copy()
