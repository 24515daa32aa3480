"""The direct port: local.proto over TCP, for clients that cannot map the arena.

It is plaintext, and knows callers by no credentials: a server with TLS or an access file has none. Where gRPC answers
only some users of this host, so does this port.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from dataplane_server.accepting import accepting
from dataplane_server.access.gate import Credentials, Gate
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import EndRead
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.error_table import status_of
from dataplane_server.service.grpc.value_streams import MAX_STREAMS, network_of
from dataplane_server.service.local.direct_calls import DirectSession, Reading, places
from dataplane_server.service.local.direct_connection import DirectConnection
from dataplane_server.service.local.frame_endpoint import FrameEndpoint
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.messages.frames import STALL_TIMEOUT_S
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from rl_dataplane.byte_streams import prepare_line
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD

SLOW_S = 5.0


class DirectEndpoint(FrameEndpoint[DirectSession]):
    """`listen`, later `drain` and `close` once. nonce: what a client knows from the server's status. stall_timeout_s:
    how long a client may send or take nothing where it has to, in seconds. slow_s: the same while values pass; it must
    move SLOWEST_BYTES_S for as long, too.
    """

    def __init__(
        self,
        shell: Shell,
        values: Values,
        metrics: Metrics,
        methods: Mapping[int, LocalMethod],
        gate: Gate,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(shell, metrics, methods, tracing, "direct")
        self.nonce = secrets.token_bytes(16)
        self.values = values
        self.stall_timeout_s = STALL_TIMEOUT_S
        self.slow_s = SLOW_S
        self.threads = ThreadPoolExecutor(2 * MAX_STREAMS, "direct")
        self.sending = places()
        self._gate = gate

    def listen(self, host: str, port: int) -> int:
        """Listen. Returns the port, which the system chooses for 0. OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
        listener.setblocking(False)
        self._accepting.append(accepting(listener, "direct", self._serve))
        return int(listener.getsockname()[1])

    async def _serve(self, peer: socket.socket) -> None:
        try:
            self._gate.at_connection(Credentials(_name_of(peer)), self._gate.stranger(peer))
            network = network_of(peer.getpeername()[0])
        except (Refusal, OSError) as error:
            self._refuse(peer, error)
            return
        prepare_line(peer)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: DirectConnection(self, peer, network), peer)

    def _refuse(self, peer: socket.socket, error: Exception) -> None:
        """Tell a peer why, without waiting for it, and close its connection."""
        with peer, contextlib.suppress(OSError):
            if isinstance(error, Refusal):
                body = status_of(error).SerializeToString()
                peer.send(HEAD.pack(len(body), pb.LOCAL_OUTCOME_ERROR) + body)

    def admit(self, connection: DirectConnection) -> DirectSession:
        """A session for the client of a connection."""
        return self._open(DirectSession(self._shell, connection))

    def end_reading(self, reading: Reading) -> None:
        """All bytes have left, or never will."""
        self._shell.apply(EndRead(reading.ticket))

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self.threads.shutdown)


def _name_of(peer: socket.socket) -> str:
    """As gRPC names peers."""
    host, port, *_ = peer.getpeername()
    return f"ipv6:[{host}]:{port}" if peer.family == socket.AF_INET6 else f"ipv4:{host}:{port}"
