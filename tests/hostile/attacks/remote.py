"""Attacks over gRPC and HTTP. Each is prepared by its first step, and goes on until it is closed."""

from __future__ import annotations

import contextlib
import itertools
import random
import resource
import socket
import struct
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import torch
from tests.hostile.attacks.http2 import Http2Peer
from tests.hostile.attacks.local import wait
from tests.hostile.crowded import FRAMES, KEPT, SERVICE
from tests.hostile.endpoints import OPTIONS, GrpcEndpoint
from tests.hostile.requests import REQUESTS
from tests.hostile.target import Target
from tests.integration.wire.local_peer import MIB, Peer, claim, column
from tests.integration.wire.session_peer import SessionPeer

from dataplane_client.client import connect
from dataplane_client.errors import DataPlaneError, OutOfSpaceError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.data_plane_pb2_grpc import DataPlaneServiceStub

_SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


# -- gRPC --------------------------------------------------------------------------------------------------------------


def crowded_frames(target: Target) -> Iterator[None]:
    with grpc.insecure_channel(target.grpc_address, OPTIONS) as channel:
        put: Any = channel.stream_unary(f"/{SERVICE}/PutSamples")
        for frame in itertools.cycle([make() for make in FRAMES.values()]):
            with contextlib.suppress(grpc.RpcError):
                put(iter([frame]), timeout=200)
            yield


def malformed_requests(target: Target) -> Iterator[None]:
    """Requests that break the contract, and random bytes in their place."""
    chance = random.Random(0)
    with grpc.insecure_channel(target.grpc_address, OPTIONS) as channel:
        endpoint = GrpcEndpoint(channel)
        for one in itertools.cycle(REQUESTS.values()):
            endpoint.say(one.verb, endpoint.body(one.verb, one.message, b"xy" if one.verb == "PutSamples" else b""))
            endpoint.say(one.verb, chance.randbytes(chance.choice((1, 20, 1000))))
            yield


def overload(target: Target) -> Iterator[None]:
    """Calls that begin without waiting for others, and are given up after a second."""
    with contextlib.ExitStack() as opened:
        channels = [opened.enter_context(grpc.insecure_channel(target.grpc_address, OPTIONS)) for _ in range(4)]
        stubs = [DataPlaneServiceStub(channel) for channel in channels]
        calls: deque[Any] = deque()
        for stub in itertools.cycle(stubs):
            calls.append(stub.GetPartition.future(pb.GetPartitionRequest(partition_id="p"), timeout=1))
            while calls[0].done():
                calls.popleft()
                if not calls:
                    break
            yield


def many_views(target: Target) -> Iterator[None]:
    """Claims that wait, each for other fields, and puts into their partition."""
    fields = [f"x{number}" for number in range(20)]
    target.client.register_partition("views", fields, 0, ["train"])
    with grpc.insecure_channel(target.grpc_address, OPTIONS) as channel:
        stub, calls = DataPlaneServiceStub(channel), []
        for number, required in enumerate(itertools.combinations(fields, 4)):
            request = claim(wait_s=600)
            request.partition_id, request.required_fields[:] = "views", required
            calls.append(stub.ClaimSamples.future(request, timeout=600))
            if number % 50 == 49:
                target.client.put_samples([f"v{number}"], "views", {"x0": torch.zeros(1)})
                yield
        while True:
            target.client.put_samples([f"v{time.time_ns()}"], "views", {"x0": torch.zeros(1)})
            yield


def idle_sessions(target: Target) -> Iterator[None]:
    with grpc.insecure_channel(target.grpc_address, OPTIONS) as channel:
        while True:
            peer = SessionPeer(channel)
            with contextlib.suppress(grpc.RpcError):
                peer.open(grace_s=3600.0)
            peer.break_off()
            yield


def slow_puts(target: Target) -> Iterator[None]:
    """Puts that reserve most of the memory and send a byte now and then."""

    def frames() -> Iterator[pb.PutSamplesRequest]:
        header = pb.PutSamplesHeader(
            partition_id="p", request_id="slow", sample_ids=["slow"], columns=[column(36 * MIB)]
        )
        yield pb.PutSamplesRequest(header=header)
        for offset in itertools.count():
            yield pb.PutSamplesRequest(chunk=pb.Chunk(offset_bytes=offset, data=b"x"))
            if over.wait(0.05):
                return

    over = threading.Event()
    with grpc.insecure_channel(target.grpc_address, OPTIONS) as channel, contextlib.ExitStack() as ended:
        ended.callback(over.set)
        call: Any = DataPlaneServiceStub(channel).PutSamples.future(frames())
        while not call.done():
            time.sleep(0.05)
            yield
        call.result()  # why it was refused


def half_calls(target: Target) -> Iterator[None]:
    """120 calls whose request is a byte short of the longest that there may be; then they stay."""
    message = memoryview(struct.pack(">BI", 0, 20 * MIB) + bytes(20 * MIB - 1))
    with contextlib.ExitStack() as opened:
        sent: dict[tuple[Http2Peer, int], int] = {}
        for _ in range(10):
            peer = Http2Peer(target.address.removeprefix("unix://"))
            opened.callback(peer.close)
            sent |= {(peer, peer.begin(f"/{SERVICE}/GetPartition")): 0 for _ in range(12)}
        while True:
            moved = 0
            for (peer, stream), begin in sent.items():
                with contextlib.suppress(OSError):
                    size = peer.send_as_allowed(stream, message[begin:])
                    sent[peer, stream] += size
                    moved += size
            if not moved:
                time.sleep(0.01)
            yield


def http2(target: Target, data: bytes) -> Iterator[None]:
    path = target.address.removeprefix("unix://")
    while True:
        with contextlib.suppress(OSError), contextlib.closing(Http2Peer(path)) as peer:
            peer.socket.sendall(data)
        yield


def silent_connections(target: Target) -> Iterator[None]:
    """Connections to gRPC that say nothing; when there are enough they stay."""
    with contextlib.ExitStack() as opened:
        for _ in range(3000):
            silent = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            silent.settimeout(5.0)
            silent.connect(target.address.removeprefix("unix://"))
            yield
        yield from wait()


# -- what the server keeps ---------------------------------------------------------------------------------------------


def keep(target: Target, what: str) -> Iterator[None]:
    """Have more and more kept until the server refuses it; drop all and begin again."""
    while True:
        target.client.register_partition("kept", ["x"], 0, ["train"])
        with contextlib.suppress(OutOfSpaceError):
            for call in range(10_000):
                KEPT[what](target.client, call)
                yield
        for partition in target.client.partitions():
            if partition.partition_id.startswith("kept"):
                target.client.drop_partition(partition.partition_id)


def released_claims(target: Target, rows: int = 60_000) -> Iterator[None]:
    target.client.register_partition("kept", ["x"], 0, ["train"])
    target.client.put_samples([str(row) for row in range(rows)], "kept", {"x": torch.zeros(rows)})
    yield
    while True:
        target.client.claim("kept", "train", ["x"], rows).release()
        yield


def scattered_reads(target: Target, rows: int = 65_536) -> Iterator[None]:
    """Reads of many rows and fields in random order, over shared memory."""
    fields = {f"x{number}": torch.zeros(rows, dtype=torch.uint8) for number in range(16)}
    ids = [str(row) for row in range(rows)]
    target.client.register_partition("scattered", list(fields), 0, ["train"])
    target.client.put_samples(ids, "scattered", fields)
    random.Random(0).shuffle(ids)
    yield
    with connect(target.address, transport="shm", timeout_s=60.0) as client:
        for number in itertools.count(1):
            with contextlib.suppress(DataPlaneError):
                client.get_samples(ids, "scattered", list(fields)[: number % 16 + 1])
            yield


# -- HTTP, listings, descriptors ---------------------------------------------------------------------------------------


def _register_many(target: Target) -> Iterator[None]:
    tasks = [f"task {number:0100}" for number in range(64)]
    for number in range(1000):
        target.client.register_partition(f"many {number}", ["x"], 0, tasks)
    yield


def scrapes(target: Target) -> Iterator[None]:
    yield from _register_many(target)
    while True:
        with urllib.request.urlopen(f"http://{target.http}/metrics", timeout=60) as response:
            while response.read(MIB):
                yield


def listings(target: Target) -> Iterator[None]:
    yield from _register_many(target)
    while True:
        target.client.partitions()
        yield


def unread_scrapes(target: Target) -> Iterator[None]:
    yield from _register_many(target)
    yield from _http_connections(target, _SCRAPE)


def half_http_requests(target: Target) -> Iterator[None]:
    yield from _http_connections(target, _SCRAPE[:-2])


def _http_connections(target: Target, data: bytes, most: int = 300) -> Iterator[None]:
    host, port = target.http.split(":")
    opened: deque[socket.socket] = deque()
    try:
        while True:
            if len(opened) == most:
                opened.popleft().close()
            with contextlib.suppress(OSError):  # others have all connections that there may be
                opened.append(socket.create_connection((host, int(port)), timeout=0.5))
                opened[-1].sendall(data)
            time.sleep(0.01)
            yield
    finally:
        while opened:
            opened.pop().close()


def no_descriptors(target: Target) -> Iterator[None]:
    """Connections take all descriptors that the server may have, and scrapes wait for one."""
    limits = resource.prlimit(target.pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{target.pid}/fd").iterdir()))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.prlimit, target.pid, resource.RLIMIT_NOFILE, limits)
        resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (used + 20, limits[1]))
        for _ in range(100):
            opened.callback(Peer(target.path).close)
        while True:
            host, port = target.http.split(":")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0) as scrape:
                scrape.sendall(_SCRAPE)
                scrape.recv(100)
            yield
