"""What a caller reads when no server answers: which address, what is wrong there, and what would be right."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from tests.ranks import refused_port
from tests.waiting import eventually

from dataplane_client import aio
from dataplane_client.client import connect
from dataplane_client.errors import DataPlaneError, DeadlineError, OutOfSpaceError, PreconditionError, UnavailableError
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread

GRPC_WORDS = re.compile(
    r"failed to connect to all|last error|ipv4:|addr:|SETTINGS|HTTP/2|recvmsg|Stream removed|errno", re.I
)


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A service of another kind, which does this with every connection; its address."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                answer(listener.accept()[0])

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def greet(peer: socket.socket) -> None:
    with peer:
        peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        time.sleep(0.01)


@contextlib.contextmanager
def refused_address() -> Iterator[str]:
    with refused_port() as port:
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def socket_path(kind: str) -> Iterator[str]:
    folder = Path(f"/tmp/dataplane-{os.getpid()}-{kind}")  # noqa: S108  # short: a socket's path has at most 107 bytes
    folder.mkdir()
    path = folder / "a.sock"
    if kind == "stale":
        with socket.socket(socket.AF_UNIX) as former:
            former.bind(str(path))
    elif kind == "file":
        path.touch()
    yield f"unix://{path}"
    path.unlink(missing_ok=True)
    folder.rmdir()


@contextlib.contextmanager
def foreign_grpc() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


ONE_ATTEMPT: dict[str, Any] = {"connect_timeout_s": 60.0, "first_backoff_s": 200.0}
"""The pause after the first attempt is longer than the deadline."""
START = 'Start a server with "dataplane-server --listen {address}"'
DOCTOR = '"dataplane doctor --server {address}"'
PLACES: dict[str, tuple[Callable[[], AbstractContextManager[str]], type[DataPlaneError], list[str]]] = {
    "nothing listens": (refused_address, UnavailableError, ["nothing listens there", START]),
    "no socket file": (lambda: socket_path("none"), UnavailableError, ["there is no socket file /tmp/", START]),
    "stale socket file": (lambda: socket_path("stale"), UnavailableError,
        ["nothing listens on the socket file /tmp/", "a server that was killed", START]),
    "no socket": (lambda: socket_path("file"), UnavailableError, ["a.sock is not a socket", START]),
    "no such host": (lambda: contextlib.nullcontext("no-such-host.invalid:50051"), UnavailableError,
        ["its host name cannot be resolved", DOCTOR]),
    "another service": (lambda: listening(greet), UnavailableError, ["is not a data plane server", "--listen", DOCTOR]),
    "a service that is silent": (lambda: listening(lambda peer: leaked.append(peer)), UnavailableError,
        ["what listens there does not answer", DOCTOR]),
    "a service that hangs up": (lambda: listening(lambda peer: peer.close()), UnavailableError,
        ["the connection broke", DOCTOR]),
    "another gRPC server": (foreign_grpc, PreconditionError, ["the server does not know this call", "another service"]),
}  # fmt: skip
leaked: list[socket.socket] = []


@pytest.fixture(autouse=True)
def close_leaked() -> Iterator[None]:
    yield
    while leaked:
        leaked.pop().close()


@pytest.mark.parametrize("place", PLACES)
def test_connect_says_what_is_wrong_at_an_address_and_what_would_be_right(place: str) -> None:
    make, kind, fragments = PLACES[place]
    with make() as address, pytest.raises(DataPlaneError) as caught:
        connect(address, **ONE_ATTEMPT)
    assert type(caught.value) is kind
    assert address in str(caught.value)
    expected = [fragment.format(address=address) for fragment in fragments]
    assert [fragment for fragment in expected if fragment not in str(caught.value)] == [], str(caught.value)
    assert GRPC_WORDS.search(str(caught.value)) is None, str(caught.value)
    assert caught.value.details["grpc"]


async def test_the_asynchronous_client_says_the_same() -> None:
    with socket_path("aio") as address, pytest.raises(UnavailableError, match=address.removeprefix("unix://")):
        async with aio.connect(address, **ONE_ATTEMPT):
            pass


def test_the_port_of_the_metrics_is_told_from_that_of_the_calls(start_server: Callable[..., ServerThread]) -> None:
    server = start_server(http="127.0.0.1:0")
    with pytest.raises(UnavailableError, match=r"--listen, .*--http"):
        connect(str(server.http_address), **ONE_ATTEMPT)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_server_that_ends_during_a_call_is_named(
    tmp_path: Path, transport: TransportChoice, threads: ThreadPoolExecutor
) -> None:
    address = f"unix://{tmp_path}/a.sock"
    server = ServerThread(ServerConfig(listen=(address,)))
    with connect(address, transport=transport) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.zeros(1)})
        client.claim("p", "train", ["x"], 1).commit()  # opens the session
        claimed = threads.submit(client.claim, "p", "train", ["x"], 1, timeout_s=8.0)
        eventually(lambda: client.server_status().waiting_claims)
        server.stop(0.0)
        with pytest.raises(UnavailableError) as caught:
            claimed.result()
    assert f"claim at {address}: " in str(caught.value)
    assert START.format(address=address) in str(caught.value)
    assert GRPC_WORDS.search(str(caught.value)) is None, str(caught.value)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_server_that_hangs_is_given_up_at_the_deadline_and_by_verbs_that_wait_there_two_seconds_later(
    start_server: Callable[..., ServerThread],
    transport: TransportChoice,
    threads: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_server()
    with connect(server.addresses[0], transport=transport) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        go_on = threading.Event()
        server._loop.call_soon_threadsafe(go_on.wait, 1000)
        later = threads.submit(client.partitions, timeout_s=30.0)
        took = []
        for call in (
            lambda: client.partitions(timeout_s=0.1),
            lambda: client.put_samples(["a"], "p", {"x": torch.zeros(1)}, timeout_s=0.1),
            lambda: client.claim_meta("p", "train", ["x"], 1, blocking=False, timeout_s=0.1),
        ):
            began = time.monotonic()
            with pytest.raises(DeadlineError):
                call()
            took.append(time.monotonic() - began)
        assert not later.done()
        go_on.set()
        assert len(later.result(120)) == 1
    assert took[0] >= 0.1
    assert took[1] >= 2.1
    assert "caller_refused" not in caplog.text  # by now the server has come to the calls that were given up


def test_a_session_that_the_server_refuses_is_refused_in_its_words(start_server: Callable[..., ServerThread]) -> None:
    server = start_server(max_sessions=1)
    with connect(server.addresses[0]) as first, connect(server.addresses[0]) as second:
        first.register_partition("p", ["x"], 0, ["train"])
        with first.reserve_group("p", "g", ["a"]) as group:
            with pytest.raises(OutOfSpaceError, match="1 sessions"):
                second.claim("p", "train", ["x"], 1, timeout_s=0.2)
            group.abort()
