"""One server: the core, the arena and all listeners (gRPC, local sockets, health, HTTP); starts and stops them."""

from __future__ import annotations

import asyncio
import errno
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from dataplane_server.access.gate import Gate
from dataplane_server.access.opening import has_abstract_socket, open_gate, open_tls, peers_of_socket_files
from dataplane_server.config import ServerConfig, host_and_port, with_port
from dataplane_server.core.calls.life_calls import LetGo
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.issued_ids import new_incarnation
from dataplane_server.durability.checkpointer import Checkpointer
from dataplane_server.durability.life import Life
from dataplane_server.log import get_log
from dataplane_server.observe.loop_lag import LoopLag
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.observe.verdict import reasons_of
from dataplane_server.service.binding import bind, check_port, unix_path
from dataplane_server.service.grpc.boundary import Boundary
from dataplane_server.service.grpc.health import Health, HealthListener
from dataplane_server.service.grpc.reflection import serve_reflection
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.lives import life_now
from dataplane_server.service.local.direct_calls import DirectCalls
from dataplane_server.service.local.direct_endpoint import DirectEndpoint
from dataplane_server.service.local.local_calls import LocalCalls
from dataplane_server.service.local.local_endpoint import LocalEndpoint
from dataplane_server.service.local.local_methods import local_methods
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES, SENT_CHUNK_BYTES
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.shell import Shell
from dataplane_server.service.sidecar import Sidecar
from dataplane_server.service.snapshots import Snapshots
from dataplane_server.service.socket_files import SocketFile, others_kept
from dataplane_server.service.translate.rows import repeats
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena, can_share
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1.frames import keep_message_memory

if TYPE_CHECKING:
    from dataplane_server.http_side import HttpSide

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    # Calls that have arrived and that the event loop has not taken yet; each takes about half a millisecond. gRPC
    # refuses others (CANCELLED) before Python sees them, and clients slow down; see "Overload" in docs/design.md.
    ("grpc.server.max_pending_requests", 16),
    ("grpc.server.max_pending_requests_hard_limit", 32),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # gRPC reads two chunks of a stream ahead, no more: its own estimate buffers hundreds of MB when the server is busy.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 * SENT_CHUNK_BYTES),
    ("grpc.http2.max_frame_size", 1 << 20),  # the default splits a chunk into pieces of 16 KiB
)


_FORMER_CLIENTS_S = 1.0
_CHECKPOINTER_S = 20.0
_OWN_USER = 0o600


class Parts:
    """What a server of a cluster makes differently: here as for one machine, whose values are in the arena of its
    process. Each is made once, in this order.
    """

    keeps_snapshots = True
    shell: type[Shell] = Shell

    def arena(self, config: ServerConfig) -> Arena:
        """For a server without a data directory, whose life would bring one."""
        return Arena(config.limits.memory_bytes, shared=config.share_memory and can_share())

    def values(self, shell: Shell, arena: Arena) -> Values:
        return Values(shell.plane, arena)

    def servicer(self, shell: Shell, values: Values, metrics: Metrics, gate: Gate) -> DataPlaneServicer:
        return DataPlaneServicer(shell, values, metrics, gate)


_ONE_MACHINE = Parts()


class Server:
    """A server on the running event loop: `start`, then `stop` once."""

    def __init__(
        self,
        config: ServerConfig,
        life: Life | None = None,
        probes: HealthListener | None = None,
        parts: Parts = _ONE_MACHINE,
    ) -> None:
        """life: of the data directory; it begins now if it is not given. probes: the listener of config.health, if it
        was started before.
        """
        config.validate()
        self.config = config
        self._log = get_log()
        self._life = life or life_now(config)
        self.plane: DataPlane = _new_plane(config) if self._life is None else self._life.plane
        now = time.monotonic if self._life is None else self._life.now
        self.addresses: list[str] = []
        self._files: list[SocketFile] = []
        self.http_address: str | None = None
        self.http_door_address: str | None = None
        self.health_address: str | None = None
        self.direct_address: str | None = None
        self._arena = parts.arena(config) if self._life is None else self._life.arena
        self.metrics = Metrics(self.plane, lambda: self._serving, now)
        self.tracing = tracing = Tracing() if config.tracing else None
        self._lag = LoopLag(self.metrics.lagged)
        self.gate = gate = open_gate(config, self.plane, partial(repeats, self.plane))
        self._tls = open_tls(config)
        commits = None if self._life is None else self._life.commits
        self.shell = shell = parts.shell(self.plane, self.metrics, now, commits)
        values = parts.values(shell, self._arena)
        self.servicer = parts.servicer(shell, values, self.metrics, gate)
        self._local: LocalEndpoint | None = None
        if self._arena.shared:
            methods = local_methods(LocalCalls(shell, values, self.metrics), self.servicer, gate)
            peers, abstract = peers_of_socket_files(config), has_abstract_socket(config)
            self._local = LocalEndpoint(
                shell, self._arena, self.metrics, methods, tracing, abstract=abstract, peers=peers, gate=gate
            )
            self.servicer.share_memory(self._arena.nonce, self._local.abstract_name)
        self._direct: DirectEndpoint | None = None
        if config.direct is not None:
            methods = local_methods(DirectCalls(shell, values, self.metrics), self.servicer)
            self._direct = DirectEndpoint(shell, values, self.metrics, methods, gate, tracing)
        self._health = Health(shell.endless)
        self._probes = probes or HealthListener()
        self._probing = probes is not None
        self.metrics.ailments = lambda: {reason.ailment for reason in reasons_of(self.servicer.status())}
        self._http: HttpSide | None = None
        self._sidecars = AsyncExitStack()
        self._keeps_snapshots = parts.keeps_snapshots
        self._resumed = False
        self._serving = False
        self.left = asyncio.Event()  # set when the next life begins with a snapshot: stop this server and make another
        self._beside: list[asyncio.Task[None]] = []  # what goes on until the server stops
        self._checkpointer: Checkpointer | None = None
        boundary = Boundary(self.metrics, Messages(config.limits), shell.stable, tracing, gate)
        self._grpc = grpc.aio.server(interceptors=[boundary], options=_OPTIONS)

    async def start(self) -> None:
        """Open every listener, then report SERVING. Raises OSError if an address cannot be bound."""
        keep_message_memory()
        if self.config.health is not None and not self._probing:
            self.health_address = await self._probes.start(self.config.health)
        pb_grpc.add_DataPlaneServiceServicer_to_server(self.servicer, self._grpc)
        self._health.serve_on(self._grpc)
        if self.config.reflection:
            serve_reflection(self._grpc, self.shell.endless)
        self.resume()
        self._bind_grpc()
        sidecar = None if self.config.http_door is None else self._bind_sidecar("http-door", self.config.http_door)
        if self._local is not None:
            self._local.listen_abstract()
            for address in self.addresses:
                if address.startswith("unix:"):
                    self._local.listen_beside(unix_path(address), self.config.socket_mode)
        if self._direct is not None:
            self._open_direct(self._direct)
        await self._grpc.start()
        if self.config.http is not None:
            await self._open_http(self.config.http)
        if sidecar is not None:
            sidecar.start()
            self.http_door_address = sidecar.address
        self._lag.start()
        self._beside.append(asyncio.create_task(self.servicer.recent.keep()))
        self._report(ready=True)

    async def stop(self, grace_s: float | None = None) -> None:
        """Drain: report NOT_SERVING, end calls that wait, give the others grace_s (seconds) to finish, then close."""
        began = time.monotonic()
        grace_s = self.config.drain_grace_s if grace_s is None else grace_s
        served = self._serving
        if served:
            self._log.info("draining", grace_s=grace_s)
        self._report(ready=False)
        self.shell.drain()
        await self._sidecars.aclose()
        async with others_kept(self._files):
            endpoints = [endpoint for endpoint in (self._local, self._direct) if endpoint is not None]
            await asyncio.gather(self._grpc.stop(grace_s), *(endpoint.drain(grace_s) for endpoint in endpoints))
            for endpoint in endpoints:  # after the last put over gRPC, which could reuse leased bytes
                await endpoint.close(keep=self._life is not None)
        for file in self._files:  # gRPC leaves those of a server that did not start
            file.remove()
        if self._http is not None:
            await self._http.stop()
        self._lag.stop()
        for task in self._beside:
            task.cancel()
        if self._life is not None:
            await self._life.close()
        self._arena.close()
        if self._checkpointer is not None:
            await asyncio.to_thread(self._checkpointer.close)
        if not self._probing:
            await self._probes.stop()
        if served:
            self._log.info("stopped", drained_s=round(time.monotonic() - began, 3))

    def _bind_grpc(self) -> None:
        credentials = None if self._tls is None else self._tls.grpc_credentials()
        for address in self.config.listen:
            self.addresses.append(bind(self._grpc, address, self.config.socket_mode, tls=credentials))
            if address.startswith("unix:"):
                self._files.append(SocketFile(Path(unix_path(address))))
            else:
                self.gate.grpc_listens(*host_and_port("listen", self.addresses[-1]))

    def _bind_sidecar(self, name: str, address: str) -> Sidecar:
        sidecar = Sidecar(name, address, self.config)
        self._sidecars.push_async_callback(sidecar.stop)
        bind(self._grpc, sidecar.listen, _OWN_USER)
        return sidecar

    def _open_direct(self, direct: DirectEndpoint) -> None:
        address = str(self.config.direct)
        (_, place), *_ = check_port("direct", address)
        port = direct.listen(*place[:2])
        self.direct_address = with_port(address, port)
        self.servicer.serve_directly(port, direct.nonce)

    async def _open_http(self, address: str) -> None:
        from dataplane_server.http_side import HttpSide  # not before: aiohttp takes 12 MB, and a tenth of a second
        from dataplane_server.page.page import open_page

        check_port("http", address)
        host, port = host_and_port("http", address)
        self._http = HttpSide(
            self.metrics,
            lambda: self._serving,
            gate=self.gate,
            tls=self._tls,
            unhealthy=lambda: [reason.text for reason in reasons_of(self.servicer.status())],
            page=open_page(self.servicer, self.shell, self.metrics, lambda: self._serving, self.gate),
        )
        self.http_address = with_port(address, await self._http.start(host, port))

    def resume(self) -> None:
        """Go on where the former life ended. `start` does it, unless it was done before."""
        if self._life is not None and not self._resumed:
            self._resumed = True
            self._life.resume()
            self.shell.resume()
            history_bytes = self.config.log_history_bytes
            self._checkpointer = Checkpointer(self._life.folder, self.config.checkpoint_calls, history_bytes)
            folder = self.config.snapshot_dir or self._life.folder / "snapshots"
            self.servicer.durability = self.config.durability
            if self._keeps_snapshots:
                snapshots = Snapshots(self.shell, self._life, self._checkpointer, folder)
                self.servicer.keep_snapshots(snapshots)
                self.left = snapshots.left
            self._beside.append(asyncio.create_task(self._watch_folder(self._life, self._checkpointer)))
            if self._life.held:
                self._beside.append(asyncio.create_task(self._watch_former_clients()))

    async def _watch_folder(self, life: Life, checkpointer: Checkpointer) -> None:
        """End if the folder was moved or removed: no other life would find what is acknowledged. Have a checkpointer at
        all times: one that failed, such as on a full disk, tries again.
        """
        while True:
            await asyncio.sleep(_CHECKPOINTER_S)
            try:
                life.log.check_folder()
            except OSError as error:
                if error.errno == errno.ESTALE:  # other errors may pass, as those of a volume in the network do
                    life.failed(error)
            try:
                checkpointer.restart_if_ended()
            except OSError as error:  # no memory or descriptor for a process, for now
                self._log.error("checkpointer_failed", why=str(error), exc_info=error)

    async def _watch_former_clients(self) -> None:
        """Free what clients of the former life may still use, once none of them maps the arena."""
        while self._arena.holders():  # noqa: ASYNC110  # the kernel tells, when it is asked
            await asyncio.sleep(_FORMER_CLIENTS_S)
        self.shell.apply(LetGo())
        self._log.info("former_clients_gone")

    def _report(self, *, ready: bool) -> None:
        self._serving = ready
        self._health.report(ready=ready)
        self._probes.report(ready=ready)


def _new_plane(config: ServerConfig) -> DataPlane:
    return DataPlane(config.limits, incarnation=new_incarnation(), first_generation=time.time_ns() // 1000)
