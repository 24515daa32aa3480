"""The direct port: local.proto over TCP, for clients that cannot map the arena. Frames are those of a local socket, and
the bytes of values pass between them.

It is plaintext, and knows callers by no credentials: a server with TLS or an access file has none. Where gRPC answers
only some users of this host, so does this port.

While values pass, a thread uses the connection's socket, and the event loop neither reads nor writes it. A client that
dies, closes the connection or is too slow ends the thread's wait, and with it the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from google.protobuf.message import Message

from dataplane_server.access.gate import Credentials, Gate
from dataplane_server.access.loopback import name_of_peer
from dataplane_server.arena_streams import in_thread, send_runs
from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.call_scope import CallScope
from dataplane_server.service.grpc.value_streams import MAX_STREAMS, network_of
from dataplane_server.service.local.direct_calls import PLACE_S, DirectSession, Reading, places
from dataplane_server.service.local.frame_endpoint import FrameEndpoint, Greeting, refuse
from dataplane_server.service.local.handles import Handles
from dataplane_server.service.local.local_connection import LocalConnection, body_of
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.messages.frames import SLOWEST_BYTES_S, STALL_TIMEOUT_S
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from rl_dataplane.byte_streams import Pace, prepare_line, receive_pieces
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import TRACED, frame_of

SLOW_S = 5.0


class DirectEndpoint(FrameEndpoint[DirectSession]):
    """`listen`, later `drain` and `close` once. nonce: what a client knows from the server's status. stall_timeout_s:
    how long a client may send or take nothing where it has to, in seconds. slow_s: the same while values pass; it must
    move SLOWEST_BYTES_S for as long, too. sending: places for the streams of values that leave at the same time.
    """

    def __init__(
        self,
        shell: Shell | None,
        values: Values | None,
        metrics: Metrics | None,
        methods: Mapping[int, LocalMethod],
        gate: Gate,
        tracing: Tracing | None = None,
    ) -> None:
        greetings: dict[int, Greeting] = {pb.LOCAL_METHOD_DIRECT: (pb.DirectRequest, self._admit)}
        super().__init__(shell, metrics, methods, greetings, tracing, "direct")
        self._shell = shell
        self.nonce = secrets.token_bytes(16)
        self.values = values
        self.stall_timeout_s = STALL_TIMEOUT_S
        self.slow_s = SLOW_S
        self.threads = ThreadPoolExecutor(2 * MAX_STREAMS, "direct")
        self.sending = places()
        self._gate = gate

    def listen(self, host: str, port: int) -> int:
        """Listen. Returns the port, which the system chooses for 0. OSError."""
        return self._accept_tcp("direct", host, port, self._serve)

    async def _serve(self, peer: socket.socket) -> None:
        try:
            self._gate.at_connection(Credentials(name_of_peer(*peer.getpeername())), self._gate.stranger(peer))
            network = network_of(peer.getpeername()[0])
        except Refusal as refusal:
            return refuse(peer, refusal)
        except OSError:
            return peer.close()
        prepare_line(peer)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: DirectConnection(self, peer, network), peer)
        return None

    def _admit(self, request: pb.DirectRequest, connection: DirectConnection) -> pb.DirectResponse:
        if not hmac.compare_digest(request.nonce, self.nonce):
            raise Refusal(Reason.UNAUTHENTICATED, "another run of the server; ask for its status again")
        connection.session, connection.is_lifeline = self._open(DirectSession(self._shell, connection)), True
        return pb.DirectResponse(traces=self.traces)

    def _count(self, clients: int) -> None:
        """Its clients map no memory."""

    async def close(self, *, keep: bool = False) -> None:
        await super().close()  # its clients map no memory
        await asyncio.to_thread(self.threads.shutdown)


class DirectConnection(LocalConnection):
    """One client's, for one call at a time. network: where the peer is."""

    def __init__(self, endpoint: DirectEndpoint, peer: socket.socket, network: str) -> None:
        super().__init__(endpoint, peer, endpoint.stall_timeout_s)
        self.network = network
        self._direct = endpoint
        self._begun: bytes | None = None  # the first bytes of values that no call has taken yet

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.peer.shutdown(socket.SHUT_RDWR)  # ends a thread's wait
        super().close()

    def _stalls(self) -> bool:
        return super()._stalls() or (self.session is not None and self.session.writes > 0)

    # -- values that come ----------------------------------------------------------------------------------------------

    def _serve(self, number: int, body: bytes, session: Handles[Any]) -> None:
        if number & ~TRACED == pb.LOCAL_METHOD_FINISH_WRITE:
            self._begun = bytes(self._received)
            self._received.clear()
            self.pause_writing()
        super()._serve(number, body, session)

    async def receive(self, reservation: Reservation) -> None:
        begun, self._begun = self._begun or b"", None
        places = iter(cast("Values", self._direct.values).places(reservation.runs))
        fill = partial(_fill, begun, places)
        try:
            if len(begun) > reservation.size_bytes:
                raise EOFError("more came")
            await self._in_thread(fill)
        except (OSError, EOFError) as error:
            self.close()
            text = f"not the {reservation.size_bytes} bytes of the values came: {error}"
            raise Refusal(Reason.MALFORMED_STREAM, text) from None

    def _refuse(self, call: CallScope) -> None:
        super()._refuse(call)
        if self._begun is not None and self._transport is not None:
            self._transport.close()  # its values have not been read
        self._go_on()

    # -- values that go ------------------------------------------------------------------------------------------------

    def _respond(self, call: CallScope, response: Message) -> None:
        reading = cast("DirectSession", self.session).take_reading()
        if reading is not None:
            self.pause_writing()
            self.call = asyncio.get_running_loop().create_task(self._deliver(call, response, reading))
            return
        super()._respond(call, response)
        self._note_stall(stalled=self._stalls())
        self._go_on()

    async def _deliver(self, call: CallScope, response: Message, reading: Reading) -> None:
        """Send a response and the values that follow it, or why there is none."""
        with call:
            try:
                await self._send_values(body_of(response), reading)
            finally:
                reading.end()
            call.end()
            self.call = None
            return self._go_on()
        self.call = None
        return self._refuse(call)

    async def _send_values(self, body: bytes, reading: Reading) -> None:
        head = frame_of(pb.LOCAL_OUTCOME_UNSPECIFIED, body)
        async with self._direct.sending.place(PLACE_S, self.network):
            try:
                await self._in_thread(lambda line, pace: send_runs(line, head, reading.runs, reading.pieces, pace))
            except OSError:
                self.close()
                raise asyncio.CancelledError from None  # the caller has gone
            except Exception:
                self.close()  # part of the response may have been sent
                raise

    # ------------------------------------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[socket.socket, Pace], None]) -> None:
        """Have a thread use the socket. work: takes it and the pace that the peer has to keep."""
        slow_s = self._direct.slow_s
        with self.peer.dup() as line:
            line.settimeout(slow_s)
            await in_thread(self._direct.threads, lambda: work(line, Pace(SLOWEST_BYTES_S, slow_s)))

    def _go_on(self) -> None:
        """Read the next request, once the last response is sent."""
        if self._unsent and self._transport is not None and not self._transport.get_write_buffer_size():
            self.resume_writing()


def _fill(begun: bytes, pieces: Iterator[memoryview], line: socket.socket, until: Pace) -> None:
    receive_pieces(line, _rests(begun, pieces), until)


def _rests(begun: bytes, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
    """What is left of pieces when the first bytes are in their places."""
    rest = memoryview(begun)
    for piece in pieces:
        size = min(len(rest), len(piece))
        piece[:size], rest = rest[:size], rest[size:]
        yield piece[size:]
