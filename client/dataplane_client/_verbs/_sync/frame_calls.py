"""Calls by frames of local.proto: at a server's local socket, at a coordinator, or at a direct port.

They are the calls of `grpc_calls`. Small values are in messages; a carrier has the others.
"""

from __future__ import annotations

import itertools
from typing import Any

from google.protobuf.message import Message

from dataplane_client._connect.deadline import Deadline
from dataplane_client._memory.local_protocol import LOCAL_METHODS, LOCAL_WRITES
from dataplane_client._memory.placement import Destination, PlacedColumn, ReadBuffers, blame_server
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._values.column_messages import column_layouts
from dataplane_client._values.columns_layout import join_values
from dataplane_client._values.digests import digest_check
from dataplane_client._verbs._sync.carriers import Carrier
from dataplane_client._verbs._sync.connections import Connections
from dataplane_client._verbs._sync.runtime import LocalConnection
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb


class FrameCalls:
    """The calls of one client. In a cluster they are made at the coordinator; the actor of the client's node fetches
    what a read has on other nodes.
    """

    def __init__(self, target: str, carrier: Carrier) -> None:
        self.transport = carrier.transport
        self.carrier = carrier
        self._target = target
        self._connections = Connections(target, carrier, carrier.address)
        self._node = Connections(target, carrier, carrier.node_address)
        self._handles = itertools.count(1)

    def close(self) -> None:
        """End calls under way. Views of the arena keep their leases."""
        self._connections.close()
        self._node.close()

    def reach(self, timeout_s: float) -> None:
        """Raises OSError if the server cannot be reached, or does not serve this client."""
        self._connections.reach(timeout_s)

    def unary(self, verb: str, request: Message, timeout_s: float, traceparent: str = "") -> Any:
        """Call a method with one request."""
        number, response = LOCAL_METHODS[verb]
        return self._connections.call(verb, number, request, response, Deadline(timeout_s), traceparent)

    def write(self, write: RowWrite, timeout_s: float, traceparent: str = "") -> Any:
        """Put or commit: small values in one call, larger ones once the server has reserved space for them."""
        verb, deadline, handle, values = write.verb, Deadline(timeout_s), next(self._handles), None
        (number, message), response = LOCAL_WRITES[verb], pb.LocalWriteResponse
        if write.size_bytes <= self.carrier.inline_bytes:
            write.hash_values()
            values = join_values(write.columns)
        request = message(header=write.header, handle=handle, values=values)
        call = self._connections.call
        own: list[LocalConnection] = []  # for both calls: a server that starts to drain accepts no new connection
        try:
            written = call(verb, number, request, response, deadline, traceparent, own)
            if written.HasField("reservation"):
                finish = pb.FinishWriteRequest(handle=handle)
                with blame_server(f"{verb} at {self._target}"):
                    try:
                        send = self.carrier.write(write, written.reservation, finish, deadline.left_s)
                    except TimeoutError as error:
                        raise self._connections.failure(verb, error) from None
                number = pb.LOCAL_METHOD_FINISH_WRITE
                written = call(verb, number, finish, response, deadline, traceparent, own, send)
        except BaseException:
            self._abandon(handle, own)  # no copy into the reservation is under way any more
            raise
        finally:
            for connection in own:
                self._connections.put_back(connection)
        return written.commit if written.HasField("commit") else written.put

    def read(
        self, request: plane_pb.ReadColumnsRequest, destination: Destination, timeout_s: float, traceparent: str = ""
    ) -> list[PlacedColumn]:
        """Read columns."""
        carrier, deadline, handle = self.carrier, Deadline(timeout_s), next(self._handles)
        number, response = pb.LOCAL_METHOD_READ, pb.LocalReadResponse
        message = pb.LocalReadRequest(request=request, handle=handle, inline_bytes=carrier.inline_bytes)
        n_rows, what = len(request.sample_ids), f"ReadColumns at {self._target}"
        own: list[LocalConnection] = []
        try:
            found = self._connections.call("ReadColumns", number, message, response, deadline, traceparent, own)
            lease = found.lease if found.HasField("lease") else None
            if lease is not None and lease.nodes:
                lease = self.fetch(handle, lease, deadline, traceparent)
            layouts, check = column_layouts(found.header, request), digest_check(found.header, request, what)
            if lease is not None and destination.views and check is None:  # what lies there may still change
                with blame_server(what):
                    views = carrier.views(handle, lease, layouts, n_rows)
                if views is not None:
                    return views
            buffers = ReadBuffers(layouts, n_rows, destination, check)
            with blame_server(what):
                if lease is None:
                    buffers.copy_all(found.values)
                    return buffers.columns
                try:
                    carrier.read(lease, buffers, own[0], deadline.left_s)
                except (OSError, EOFError) as error:
                    raise self._connections.failure("ReadColumns", error) from None
            if carrier.release is not None:
                carrier.release(handle)
            return buffers.columns
        except BaseException:
            self._abandon(handle, own)
            raise
        finally:
            for connection in own:
                self._connections.put_back(connection)

    def fetch(self, handle: int, runs: pb.ArenaRuns, deadline: Deadline, traceparent: str) -> pb.ArenaRuns:
        """Have bytes of other nodes brought into this node's memory and kept for a handle. Where they are there."""
        number, request, response = pb.LOCAL_METHOD_FETCH, pb.FetchRequest(handle=handle, runs=runs), pb.FetchResponse
        return (self._node.call("ReadColumns", number, request, response, deadline, traceparent)).runs

    def _abandon(self, handle: int, own: list[LocalConnection]) -> None:
        """Release what a call that failed may hold."""
        if self.carrier.release is not None:
            self.carrier.release(handle)
            return
        while own:
            self._connections.drop(own.pop())
