"""Calls over a server's local socket, with values in the memory that it shares. The same calls as in `grpc_calls`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from dataplane_client._common.arrays import int64s
from dataplane_client._connect.deadline import Deadline
from dataplane_client._memory.arena_writes import fill_and_hash_runs, fill_runs
from dataplane_client._memory.direct_port import opened
from dataplane_client._memory.leased_views import leased_columns
from dataplane_client._memory.local_protocol import LOCAL_WRITES
from dataplane_client._memory.placement import Destination, PlacedColumn, ReadBuffers, blame_server
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._values.column_messages import column_layouts
from dataplane_client._values.columns_layout import join_values
from dataplane_client._values.digests import digest_check
from dataplane_client._verbs._sync.runtime import LocalConnection, run_in_thread
from dataplane_client._verbs._sync.session_calls import SessionCalls
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

_NOTICE_S = 10
"""Until a coordinator whose host is gone has no calls under way."""
_LONG_COPY_BYTES = 2 << 20


class LocalCalls(SessionCalls):
    """The calls of one attached session. In a cluster they are made at the coordinator; the actor of the client's node
    fetches what a read has on other nodes.
    """

    def __init__(self, target: str, arena: SharedArena) -> None:
        super().__init__(target, arena)
        self._node = SessionCalls(target, arena)

    def close(self) -> None:
        super().close()
        self._node.close()

    def reach(self, timeout_s: float) -> None:
        """OSError if calls are made elsewhere than at the local socket, and that cannot be reached."""
        if self._arena.calls_at is not None:
            self._put_back(self._take_connection(Deadline(timeout_s)))

    def _open_connection(self, deadline: Deadline) -> LocalConnection:
        if self._arena.calls_at is None:
            return super()._open_connection(deadline)
        connect = partial(opened, self._arena.calls_at, deadline.left_s, _NOTICE_S)
        return LocalConnection(run_in_thread(connect))

    def takes(self, write: RowWrite) -> bool:
        """Whether these values can be written: in the message, or into memory that this process may write."""
        return write.size_bytes <= self._arena.inline_bytes or self._arena.can_write

    def write(self, write: RowWrite, timeout_s: float, traceparent: str = "") -> Any:
        """Put or commit: small values in one call, larger ones into space of the arena that the server reserves."""
        deadline, handle, verb, values = Deadline(timeout_s), self._arena.next_handle(), write.verb, None
        number, message = LOCAL_WRITES[verb]
        if write.size_bytes <= self._arena.inline_bytes:
            write.hash_values()
            values = join_values(write.columns)
        request = message(header=write.header, handle=handle, values=values)
        own: list[LocalConnection] = []  # for both calls: a server that starts to drain accepts no new connection
        try:
            written = self._call(verb, number, request, pb.LocalWriteResponse, deadline, traceparent, own)
            if written.HasField("reservation"):
                number, finish = pb.LOCAL_METHOD_FINISH_WRITE, pb.FinishWriteRequest(handle=handle)
                _copy(partial(self._fill, written.reservation, write, finish), write.size_bytes)
                written = self._call(verb, number, finish, pb.LocalWriteResponse, deadline, traceparent, own)
        except BaseException:
            self._arena.release(handle)  # no copy into the reservation is under way any more
            raise
        finally:
            for connection in own:
                self._put_back(connection)
        return written.commit if written.HasField("commit") else written.put

    def _fill(self, reservation: pb.ArenaRuns, write: RowWrite, finish: pb.FinishWriteRequest) -> None:
        runs = (int64s(reservation.offsets), int64s(reservation.sizes))
        try:
            if write.header.hashed:
                finish.digests = fill_and_hash_runs(self._arena.writable, *runs, write.columns, write.n_rows)
            else:
                fill_runs(self._arena.writable, *runs, write.columns)
        except ValueError as error:
            raise InternalError(f"the server at {self._target} reserved space that does not fit: {error}") from None

    def read(
        self, request: plane_pb.ReadColumnsRequest, destination: Destination, timeout_s: float, traceparent: str = ""
    ) -> list[PlacedColumn]:
        """Read columns."""
        deadline, handle = Deadline(timeout_s), self._arena.next_handle()
        message = pb.LocalReadRequest(request=request, handle=handle, inline_bytes=self._arena.inline_bytes)
        n_rows, leased = len(request.sample_ids), True
        number, response = pb.LOCAL_METHOD_READ, pb.LocalReadResponse
        try:
            found = self._call("ReadColumns", number, message, response, deadline, traceparent)
            leased, lease = found.HasField("lease"), found.lease
            if lease.nodes:
                lease = self._node.fetch(handle, lease, deadline, traceparent)
            layouts = column_layouts(found.header, request)
            check = digest_check(found.header, request, f"ReadColumns at {self._target}")
            if not leased:
                buffers = ReadBuffers(layouts, n_rows, destination, check)
                with self._blame_server():
                    buffers.copy_all(found.values)
                return buffers.columns
            with self._blame_server():
                runs = (int64s(lease.offsets), int64s(lease.sizes))
                lends = destination.views and check is None  # what lies in shared memory may still be changed
                views = leased_columns(self._arena, handle, layouts, n_rows, *runs) if lends else None
            if views is not None:
                leased = False  # the views release the lease
                return views
            buffers = ReadBuffers(layouts, n_rows, destination, check)
            with self._blame_server():
                _copy(partial(buffers.copy_runs, self._arena.readable, *runs), buffers.size_bytes)
            return buffers.columns
        finally:
            if leased:
                self._arena.release(handle)

    def _blame_server(self) -> contextlib.AbstractContextManager[None]:
        return blame_server(f"ReadColumns at {self._target}")


def _copy(copy: Callable[[], None], size_bytes: int) -> None:
    """Copy, in a thread if it takes longer than a call, so that the event loop goes on."""
    if size_bytes > _LONG_COPY_BYTES:
        run_in_thread(copy)
    else:
        copy()
