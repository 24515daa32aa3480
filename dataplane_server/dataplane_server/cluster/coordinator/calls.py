"""Puts, commits and reads of clients that map the arena of their own node.

As `service.local.local_calls`, but this process does not have the bytes: messages hold no values, places are those that
the node knows, and a read names bytes of other nodes for the client to have fetched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from google.protobuf.message import Message

from dataplane_server.cluster.coordinator.members import Members
from dataplane_server.cluster.coordinator.placing import acting_on
from dataplane_server.cluster.coordinator.remote_values import ClusterValues
from dataplane_server.core.calls.answers import Reservation, Waiting
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import ShareReservation
from dataplane_server.core.calls.values import Runs
from dataplane_server.core.rows.regions import NODE_SHIFT, WITHIN_NODE, node_of
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service import translate
from dataplane_server.service.local.local_calls import Answer, LocalCalls, Sent, arena_runs
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.local.local_session import Applied, Lease, LocalSession, SharedReservation
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import local_pb2 as pb

_MOST_HINTS = 1024


class ClusterSession(LocalSession):
    """A client of a node."""

    def __init__(self, shell: Shell, node: int, token: bytes) -> None:
        super().__init__(shell, token=token)
        self.node = node


class ClusterCalls(LocalCalls):
    """The methods whose values lie on nodes."""

    def __init__(self, shell: Shell, values: ClusterValues, metrics: Metrics, members: Members) -> None:
        super().__init__(shell, values, metrics)
        self._plane = shell.plane
        self._members = members
        self._hints: OrderedDict[int, str] = OrderedDict()  # of puts under way, by ticket

    def put(self, request: pb.LocalPutRequest, session: LocalSession) -> Answer:
        begun = self._shell.apply(translate.rows.put(request.header))
        if request.header.read_on and isinstance(begun, (Reservation, Waiting)):
            self._hints[begun.ticket] = request.header.read_on
            if len(self._hints) > _MOST_HINTS:
                self._hints.popitem(last=False)
        return self._go_on(begun, self._put_applied, request, session)

    def _finish(
        self, reservation: Reservation, applied: Applied, digests: bytes, value_digests: bytes
    ) -> pb.LocalWriteResponse:
        response = super()._finish(reservation, applied, digests, value_digests)
        if reservation.runs:
            source = node_of(reservation.runs[0].offset)
            self._members.written_bytes[source] += reservation.size_bytes
            if reader := self._hints.pop(reservation.ticket, ""):
                self._members.will_read(reader, source, lambda node: self._lease(Runs.of(reservation.runs), node))
        return response

    def _use(self, reservation: Reservation, applied: Applied, sent: Sent, session: LocalSession) -> Answer:
        with self._shell.aborted_on_error(reservation.ticket):
            if sent.values:
                message = "messages of a node's clients hold no values; write them to the reservation"
                raise Refusal(Reason.INVALID_REQUEST, message)
            if reservation.size_bytes:
                self._shell.apply(ShareReservation(reservation.ticket))
                session.hold(sent.handle, SharedReservation(reservation, applied))
                return pb.LocalWriteResponse(reservation=_runs(Runs.of(reservation.runs)))
        return self._finish_empty(reservation, applied, sent.value_digests)

    async def _finish_empty(
        self, reservation: Reservation, applied: Applied, value_digests: bytes
    ) -> pb.LocalWriteResponse:
        with self._shell.aborted_on_error(reservation.ticket):
            digests = self._values.digests(reservation)
            once = digests if isinstance(digests, bytes) else await digests
            return self._finish(reservation, applied, once, value_digests)

    def read(self, request: pb.LocalReadRequest, session: LocalSession) -> pb.LocalReadResponse:
        plan = self._shell.apply(translate.rows.read(request.request))
        session.hold(request.handle, Lease(plan.ticket))
        response = pb.LocalReadResponse(header=translate.rows.read_header(plan))
        node = cast("ClusterSession", session).node
        response.lease.CopyFrom(self._lease(plan.runs, node))
        self._members.local_read_bytes[node] += _bytes_on(node, response.lease)
        self._metrics.carried("ReadColumns", "shm", plan.size_bytes)
        return response

    def _lease(self, runs: Runs, node: int) -> pb.ArenaRuns:
        """Where the bytes are. Nodes and versions only if some are on other nodes than the reader's."""
        lease, nodes = _runs(runs), runs.offsets >> NODE_SHIFT
        if (nodes != node).any():
            lease.nodes = nodes.astype("<u4").tobytes()
            lease.versions = self._plane.versions(runs.offsets, runs.sizes).astype("<i8").tobytes()
        return lease


def _runs(runs: Runs) -> pb.ArenaRuns:
    """Runs, by their offsets within their nodes."""
    return arena_runs(Runs(runs.offsets & WITHIN_NODE, runs.sizes))


def _bytes_on(node: int, lease: pb.ArenaRuns) -> int:
    """How many bytes of a lease of a client of this node are on the node."""
    sizes = np.frombuffer(lease.sizes, "<i8")
    return int((sizes[np.frombuffer(lease.nodes, "<u4") == node] if lease.nodes else sizes).sum())


def on_its_node(method: LocalMethod) -> LocalMethod:
    """A method whose calls are made on the node of their session."""

    def call(message: Any, session: LocalSession) -> Message | Awaitable[Message]:
        node = cast("ClusterSession", session).node
        with acting_on(node):
            answer = method.call(message, session)
        return answer if isinstance(answer, Message) else _on(node, answer)

    return replace(method, call=call)


async def _on(node: int, answer: Awaitable[Message]) -> Message:
    with acting_on(node):
        return await answer
