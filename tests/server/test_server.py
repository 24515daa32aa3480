"""Start and end of a server inside a program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from dataplane_server import http_listener
from dataplane_server.accepting import tcp_listener
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.service import sidecar
from dataplane_server.service.lives import next_life
from dataplane_server.testing import ServerThread, running_server
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1.local_frames import FILE_SUFFIX

LIMITS = Limits(memory_bytes=1 << 20)


def config(*listen: str) -> ServerConfig:
    return ServerConfig(listen=listen, limits=LIMITS)


def answers(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        status = pb_grpc.DataPlaneServiceStub(channel).GetServerStatus(pb.GetServerStatusRequest(), timeout=200)
    return status.memory_budget_bytes == 1 << 20


def test_a_server_listens_everywhere_it_was_told_to_says_where_and_frees_the_addresses(tmp_path: Path) -> None:
    server = ServerThread(config("127.0.0.1:0", f"unix:{tmp_path}/a.sock", f"unix://{tmp_path}/b.sock"))
    tcp, first, second = addresses = server.addresses
    assert (first, second) == (f"unix://{tmp_path}/a.sock", f"unix://{tmp_path}/b.sock")
    assert not tcp.endswith(":0")
    assert all(answers(address) for address in addresses)
    server.check_invariants()
    server.stop()
    again = ServerThread(config(*addresses))
    assert all(answers(address) for address in addresses)
    again.stop()


def test_the_socket_of_a_living_server_is_not_taken_over(tmp_path: Path) -> None:
    living = ServerThread(config(f"unix://{tmp_path}/a.sock", f"unix://{tmp_path}/b.sock{FILE_SUFFIX}"))
    message = rf"unix://.*a\.sock: another server \(process {os.getpid()}\) listens there; stop it, or choose"
    with pytest.raises(OSError, match=message):
        ServerThread(config(f"unix://{tmp_path}/a.sock"))
    other = ServerThread(config(f"unix://{tmp_path}/b.sock"))  # without shared memory: the file beside it is taken
    for server in (other, living):
        assert all(map(answers, server.addresses))
        server.stop()


def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    path, link = tmp_path / "precious", tmp_path / "link"
    path.write_text("data")
    link.symlink_to("nothing")
    for place in (path, link):
        with pytest.raises(OSError, match=f"{place}: there is a file that is not a socket"):
            ServerThread(config(f"unix://{place}"))
    assert path.read_text() == "data"


@pytest.mark.parametrize("flag", ["listen", "http", "health", "direct"])
def test_a_taken_port_is_an_os_error_and_no_file_stays(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        unix = f"unix://{tmp_path}/a.sock"
        settings = {"listen": (unix,), flag: (unix, taken) if flag == "listen" else taken}
        with pytest.raises(OSError, match=f"{taken}: .*--{flag} 127"):
            ServerThread(ServerConfig(**settings, limits=LIMITS))  # type: ignore[arg-type]  # one of the four
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("unix:///nonexistent/a.sock", "the folder /nonexistent"),
        ("unix:///proc/version/a.sock", "/proc/version is not a folder; choose another path"),
        (f"unix:///tmp/{'a' * 101}", "the path has more than 105 bytes"),
        *((f"unix:///tmp/a{sign}b", "no client would find '#', '?'") for sign in ("%2F", "#", "?", "\udcff")),
        ("192.0.2.1:0", "this host does not have that address"),
        *((f"{name}:0", "the host is unknown") for name in ("nowhere.invalid", "a..b", "\udcff")),
    ],
)
def test_an_address_where_nothing_can_listen_is_refused_in_words(
    listen: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match=re.escape(f"cannot listen on {listen}: {message}")):
        ServerThread(ServerConfig(listen=(listen,), insecure=True, limits=LIMITS))
    assert capfd.readouterr().err == ""  # gRPC has not tried


NO_IPV6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")


@pytest.mark.parametrize(
    "addresses",
    [
        ("2001:db8::1", "127.0.0.1"),  # as in a container without IPv6, where localhost is ::1 nevertheless
        pytest.param(("::1", "127.0.0.1"), marks=NO_IPV6),
        pytest.param(("::1",), marks=NO_IPV6),
    ],
    ids=" ".join,
)
def test_a_name_is_reached_by_the_last_of_its_addresses(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    """Addresses that this host lacks are left out."""
    found = socket.getaddrinfo

    def named(host: Any, *more: Any, **options: Any) -> list[Any]:
        hosts = addresses if host == "localhost" else (host,)
        return [place for each in hosts for place in found(each, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", named)
    assert_reached("localhost:0", addresses[-1])


@NO_IPV6
def test_a_port_that_is_in_use_at_another_address_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[socket.socket]()

    def listen(family: socket.AddressFamily, address: tuple[str, int], backlog: int) -> socket.socket:
        if address[1] and not taken:
            taken.append(socket.create_server(address))
        return tcp_listener(family, address, backlog)

    monkeypatch.setattr(http_listener, "tcp_listener", listen)
    places = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
    with contextlib.ExitStack() as opened:
        ports = [opened.enter_context(each).getsockname()[1] for each in http_listener._listeners(places, 0)]
        assert len(ports) == 2
        assert len({*ports, opened.enter_context(taken[0]).getsockname()[1]}) == 2


@NO_IPV6
def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    assert_reached("[::]:0", "127.0.0.1")


def assert_reached(at: str, by: str) -> None:
    settings = {"http": at, "http_door": at, "direct": at}
    server = ServerThread(ServerConfig(("[::]:0",), insecure=True, limits=LIMITS, **settings))  # type: ignore[arg-type]
    of_server = server.server
    for address in (*server.addresses, server.http_address, of_server.http_door_address, of_server.direct_address):
        socket.create_connection((by, int(str(address).rpartition(":")[2])), 20.0).close()
    server.stop()


def test_bad_settings_are_refused_before_anything_listens(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can be reached from other hosts"):
        ServerThread(config(f"unix://{tmp_path}/a.sock", "0.0.0.0:0"))
    assert list(tmp_path.iterdir()) == []


async def test_what_is_wrong_with_an_access_file_is_told_before_a_life_begins_or_is_awaited(tmp_path: Path) -> None:
    file = tmp_path / "access.json"
    file.write_text("{")
    good = ServerConfig(listen=("127.0.0.1:0",), data_dir=tmp_path / "data", limits=LIMITS)
    for standby in (True, False):
        with pytest.raises(OSError, match=f"access file {file}"):
            await next_life(replace(good, access=file, standby=standby), threading.Event())
    ServerThread(good).stop()


def test_a_program_that_cannot_be_started_beside_the_server_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = threading.Event(), threading.Event()

    async def fail(*command: str, **settings: object) -> None:
        (again if first.is_set() else first).set()
        raise BlockingIOError("no process for now")

    monkeypatch.setattr(sidecar, "_PAUSE_S", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    server = ServerThread(ServerConfig(("127.0.0.1:0",), http_door="127.0.0.1:0", limits=LIMITS))
    assert again.wait(60)
    server.stop()


def test_running_server_yields_an_address_and_ends_with_its_block_also_when_that_fails(tmp_path: Path) -> None:
    unix = f"unix://{tmp_path}/a.sock"
    with pytest.raises(ZeroDivisionError, match="True"), running_server(listen=unix, memory_bytes=1 << 20) as address:
        raise ZeroDivisionError(answers(address))
    assert list(tmp_path.iterdir()) == []
