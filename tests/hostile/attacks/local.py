"""Attacks at the local socket and on the memory behind it. Each goes on until it is closed, a step at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import time
from collections import deque
from collections.abc import Iterator

from tests.hostile.crowded import CROWDED, part
from tests.hostile.target import Target
from tests.integration.wire.local_peer import HEAD, MIB, Lifeline, Peer, framed, put, read

from dataplane_client.client import connect
from rl_dataplane.v1 import local_pb2 as pb

_HALF = HEAD.pack(20 * MIB, pb.LOCAL_METHOD_READ) + bytes(19 * MIB)
_LET_GO = (pb.LOCAL_METHOD_LET_GO, part(1, b"\x01" * 19 * MIB))


def unread_answers(target: Target) -> Iterator[None]:
    yield from _flood(target, framed(pb.LOCAL_METHOD_READ, read(1, inline_bytes=MIB)) * 1000, peers=400)


def half_requests(target: Target) -> Iterator[None]:
    yield from _flood(target, _HALF, peers=40)


def _flood(target: Target, data: bytes, peers: int) -> Iterator[None]:
    """Send to many peers at a time, and read nothing."""
    opened: deque[Peer] = deque()
    while True:
        if len(opened) == peers:
            opened.popleft().close()
        opened.append(target.join())
        _send(opened[-1], data)
        yield


def strangers(target: Target) -> Iterator[None]:
    while True:
        peer = target.connect()
        _send(peer, _HALF)
        peer.close()
        yield


def _send(peer: Peer, data: bytes) -> None:
    """Send what the server takes: it may take no more for now, or close the connection."""
    peer.socket.settimeout(0.2)
    with contextlib.suppress(OSError):
        peer.socket.sendall(data)


def garbage(target: Target) -> Iterator[None]:
    chance, spare = random.Random(0), os.open("/dev/null", os.O_RDONLY)
    for number in itertools.count():
        peer = target.join() if number % 2 else target.connect()
        with contextlib.suppress(OSError):
            socket.send_fds(peer.socket, [chance.randbytes(chance.choice((1, 8, 9, 1000)))], [spare] * 200)
        _send(peer, chance.randbytes(chance.choice((1, 100, 60_000))))
        peer.close()
        yield


def crowded_messages(target: Target) -> Iterator[None]:
    for method, body in itertools.cycle([*(make() for make in CROWDED.values()), _LET_GO]):
        peer = target.join()
        with contextlib.suppress(ConnectionError):
            peer.send(method, body)
            peer.receive()
        peer.close()
        yield


def connections(target: Target) -> Iterator[None]:
    """Attached clients and idle connections; when there are enough they stay."""
    with contextlib.ExitStack() as opened:
        for _ in range(2000):
            lifeline, idle = Lifeline(target.path), Peer(target.path)
            while lifeline.descriptors:
                os.close(lifeline.descriptors.pop())
            opened.callback(lifeline.close)
            opened.callback(idle.close)
            yield
        yield from wait()


def lent_room(target: Target) -> Iterator[None]:
    """Reserve most of the memory for values that never come."""
    peer = target.join()
    for handle in range(1, 4):
        peer.call(pb.LOCAL_METHOD_PUT, put(handle, 12 * MIB), pb.LocalWriteResponse)
    yield from wait()


def wait() -> Iterator[None]:
    while True:
        time.sleep(0.1)
        yield


def overwritten_memory(target: Target) -> Iterator[None]:
    with connect(target.address, transport="shm") as client:
        arena = client._transport._local.carrier.arena  # type: ignore[union-attr]
        while True:
            arena.writable[:] = 0
            for descriptor in arena._descriptors:
                os.fchmod(descriptor, 0)
            time.sleep(0.01)
            yield
