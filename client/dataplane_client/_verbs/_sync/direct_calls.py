"""Calls to a server's direct port, with values straight between the socket and their places."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from dataplane_client._connect.deadline import Deadline
from dataplane_client._memory.direct_port import INLINE_BYTES, DirectAddress, opened, receive_values, send_values
from dataplane_client._memory.local_protocol import LOCAL_WRITES, request_frame
from dataplane_client._memory.placement import Destination, PlacedColumn, ReadBuffers, blame_server
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._values.column_messages import column_layouts
from dataplane_client._values.columns_layout import join_values
from dataplane_client._values.digests import digest_check
from dataplane_client._verbs._sync.frame_calls import FrameCalls
from dataplane_client._verbs._sync.runtime import LocalConnection, run_in_thread
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

_HANDLE = 1  # a connection's calls hold one thing at a time


class DirectCalls(FrameCalls):
    """The calls to one direct port; `opened_at` makes one."""

    transport = "direct"
    _kind = "direct"

    def __init__(self, target: str, address: DirectAddress) -> None:
        super().__init__(target, traces=False)
        self._address = address

    @classmethod
    def opened_at(cls, target: str, address: DirectAddress, timeout_s: float) -> DirectCalls:
        """Raises OSError if the port cannot be reached, or does not serve this client."""
        calls = cls(target, address)
        calls._put_back(calls._take_connection(Deadline(timeout_s)))
        return calls

    def write(self, write: RowWrite, timeout_s: float, traceparent: str = "") -> Any:
        """Put or commit: small values in one call, larger ones once the server has space for them."""
        deadline, (number, message) = Deadline(timeout_s), LOCAL_WRITES[write.verb]
        write.hash_values()
        values = join_values(write.columns) if write.size_bytes <= INLINE_BYTES else None
        request, response = message(header=write.header, handle=_HANDLE, values=values), pb.LocalWriteResponse
        with self._kept() as own:
            written = self._call(write.verb, number, request, response, deadline, traceparent, own)
            if written.HasField("reservation"):
                number = pb.LOCAL_METHOD_FINISH_WRITE
                finish = pb.FinishWriteRequest(handle=_HANDLE, digests=write.header.digests)
                send = partial(send_values, write.columns)
                written = self._call(write.verb, number, finish, response, deadline, traceparent, own, send)
        return written.commit if written.HasField("commit") else written.put

    def read(
        self, request: plane_pb.ReadColumnsRequest, destination: Destination, timeout_s: float, traceparent: str = ""
    ) -> list[PlacedColumn]:
        """Read columns; never as views."""
        deadline, number = Deadline(timeout_s), pb.LOCAL_METHOD_READ
        message = pb.LocalReadRequest(request=request, handle=_HANDLE, inline_bytes=INLINE_BYTES)
        what = f"ReadColumns at {self._target}"
        with self._kept() as own:
            found = self._call("ReadColumns", number, message, pb.LocalReadResponse, deadline, traceparent, own)
            check = digest_check(found.header, request, what)
            layouts = column_layouts(found.header, request)
            buffers = ReadBuffers(layouts, len(request.sample_ids), destination, check)
            with blame_server(what):
                if not found.HasField("lease"):
                    buffers.copy_all(found.values)
                else:
                    self._receive(own[0], buffers, deadline)
        return buffers.columns

    def _receive(self, connection: LocalConnection, buffers: ReadBuffers, deadline: Deadline) -> None:
        receive = partial(receive_values, connection.take_rest(), buffers)
        try:
            with self._using(connection):
                connection.use(receive, deadline.left_s)
        except (OSError, EOFError) as error:
            raise self._failed("ReadColumns", error) from None

    # -- connections ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _kept(self) -> Iterator[list[LocalConnection]]:
        """A block whose calls share a connection. If it raises, the connection is closed, which ends what the server
        holds for it.
        """
        own: list[LocalConnection] = []
        try:
            yield own
        except BaseException:
            for connection in own:
                connection.close()
            raise
        for connection in own:
            self._put_back(connection)

    def _open_connection(self, deadline: Deadline) -> LocalConnection:
        return LocalConnection(
            run_in_thread(partial(opened, (self._address.host, self._address.port), deadline.left_s))
        )

    def _begin(self, connection: LocalConnection, deadline: Deadline) -> None:
        request = request_frame(pb.LOCAL_METHOD_DIRECT, pb.DirectRequest(nonce=self._address.nonce))
        outcome, body = connection.exchange(request, deadline.left_s)
        self._traces = self._address.begun(outcome, body).traces
