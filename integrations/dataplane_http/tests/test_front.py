"""Who gets in: names, users, slow and many callers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.integration.access.conftest import TOKENS, Pki, access
from tests.integration.access.test_hosts import FAR, NEAR
from tests.waiting import eventually

from dataplane_client import DataPlaneClient
from dataplane_http import connections
from dataplane_http.connections import MAX_CONNECTIONS, Connection, Places
from dataplane_http.front import Door, is_own_name
from dataplane_http.tests.asking import Ask, ask_at
from dataplane_http.tests.conftest import running_gateway
from dataplane_server.config import ServerConfig, TlsFiles
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

HEAD = (
    b"POST /v1/partitions/p/samples HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n"
)
GET = b"GET /v1/partitions/nope HTTP/1.1\r\nHost: localhost\r\n\r\n"
ROUTES = [("GET", "/v1/partitions"), ("GET", "/openapi.json"), ("GET", "/healthz"), ("POST", "/v1/claims/x/commit")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_on_loopback_answers_a_web_site(gateway: str, method: str, path: str) -> None:
    statuses, port = {}, gateway.rpartition(":")[2]
    for name, asked in NEAR.items():
        connection = http.client.HTTPConnection(gateway, timeout=300)
        headers = {"Host": asked.host.replace("PORT", port), "Content-Type": "application/json"}
        headers |= {} if asked.origin is None else {"Origin": asked.origin.replace("PORT", port)}
        connection.request(method, path, "{}" if method == "POST" else None, headers)
        statuses[name] = connection.getresponse().status
        connection.close()
    refused = {name for name, status in statuses.items() if status in (400, 403)}
    assert refused == {name for name, asked in NEAR.items() if not asked.is_answered}, statuses


def test_other_addresses_answer_names_that_no_site_can_have() -> None:
    answered = {asked.host: asked.is_answered for asked in FAR.values() if asked.origin is None}
    assert {host: is_own_name(host, "192.0.2.7") for host in answered} == answered
    assert is_own_name("node1.lab.example:1", "node1.lab.example")


def test_with_tokens_a_request_needs_one_and_the_name_does_not_matter(server: ServerThread) -> None:
    with running_gateway(server.addresses[0], Door("127.0.0.1", tokens=True)) as address:
        ask, named = ask_at(address), {"Host": "dataplane.example", "Origin": "http://evil.example"}
        refused = ask("GET", "/v1/partitions", headers=named)
        assert (refused.error, refused.headers["WWW-Authenticate"]) == ((401, "UNAUTHENTICATED"), "Bearer")
        assert ask("GET", "/v1/partitions", headers={**named, "Authorization": "Bearer t"}).status == 200
        for host in ("a/healthz?", "a/openapi.json#"):  # from it, Starlette made the URL, and so its path
            assert ask("GET", "/v1/partitions", headers={"Host": host}).error == (401, "UNAUTHENTICATED")
        assert ask("GET", "/healthz").body == {"status": "serving"}


def test_health_and_the_description_need_no_token_where_the_server_wants_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pki = tmp_path / "access.json", Pki(tmp_path)
    file.write_text(json.dumps(access()))
    monkeypatch.setenv("DATAPLANE_TLS_CA", str(pki.ca))
    secured: dict[str, Any] = {
        "access": file,
        "tls": pki.issue("server", "127.0.0.1"),
        "limits": Limits(memory_bytes=1 << 20),
    }
    server = ServerThread(ServerConfig(listen=("127.0.0.1:0",), http="127.0.0.1:0", **secured))
    metrics = http.client.HTTPSConnection(
        str(server.http_address), timeout=300, context=ssl.create_default_context(cafile=pki.ca)
    )
    try:
        with running_gateway(server.addresses[0], Door("127.0.0.1", tokens=True)) as address:
            ask = ask_at(address)
            assert ask("GET", "/healthz").body == {"status": "serving"}
            assert "/healthz" in ask("GET", "/openapi.json").body["paths"]
            metrics.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKENS['everywhere']}"})
            assert 'reason="UNAUTHENTICATED"' not in metrics.getresponse().read().decode()  # an alert is on refusals
            for headers in ({}, {"Authorization": "Bearer unknown"}):
                assert ask("GET", "/v1/partitions", headers=headers).error == (401, "UNAUTHENTICATED")
    finally:
        metrics.close()
        server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize(("allowed", "status"), [((), 401), ((65532,), 200)])
def test_loopback_is_open_to_the_gateways_own_user_and_those_that_it_allows(
    server: ServerThread, allowed: tuple[int, ...], status: int
) -> None:
    with running_gateway(server.addresses[0], Door("127.0.0.1", users=frozenset(allowed))) as address:
        program = f"""
            import encodings.idna, http.client, os  # what a connection needs: the user may not read it
            connection = http.client.HTTPConnection({address!r}, timeout=300)
            os.setgroups([])
            os.setgid(65532)
            os.setuid(65532)
            connection.request("GET", "/v1/partitions")
            print(connection.getresponse().status)
        """
        run = [sys.executable, "-c", textwrap.dedent(program)]
        said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300).stdout
    assert int(said) == status


def test_the_gateway_says_whether_it_reaches_the_server(ask: Ask) -> None:
    assert ask("GET", "/healthz").body == {"status": "serving"}
    with running_gateway("127.0.0.1:1") as address:
        assert ask_at(address)("GET", "/healthz").error == (503, "UNAVAILABLE")


def test_a_certificate_is_replaced_once_its_key_is_there(server: ServerThread, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    files, later = pki.issue("door", "127.0.0.1"), pki.issue("later", "127.0.0.1")
    tls: dict[str, Any] = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
    new = later.certificate.read_text()
    with running_gateway(server.addresses[0], **tls) as address:
        ask, place = ask_at(address, ca=pki.ca), ("127.0.0.1", int(address.rpartition(":")[2]))
        assert ask("GET", "/healthz").status == 200
        later.certificate.replace(files.certificate)
        time.sleep(1.5)  # a second is how late files are looked at
        assert ask("GET", "/healthz").status == 200
        later.key.replace(files.key)
        eventually(lambda: ssl.get_server_certificate(place).strip() == new.strip())
        assert ask("GET", "/healthz").status == 200


def test_a_ca_of_callers_is_replaced(server: ServerThread, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    old, new = map(Pki, folders)
    files, callers = old.issue("door", "127.0.0.1"), [pki.issue("caller", "caller.example") for pki in (old, new)]
    ca = tmp_path / "callers.pem"
    ca.write_bytes(old.ca.read_bytes())
    tls: dict[str, Any] = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key, "ssl_ca_certs": ca}

    def admitted(address: str) -> list[bool]:
        return [_is_admitted(address, old.ca, caller) for caller in callers]

    with running_gateway(server.addresses[0], **tls, ssl_cert_reqs=ssl.CERT_REQUIRED) as address:
        assert admitted(address) == [True, False]
        new.ca.replace(ca)
        eventually(lambda: admitted(address) == [False, True])


def _is_admitted(address: str, ca: Path, caller: TlsFiles) -> bool:
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(caller.certificate, caller.key)
    connection = http.client.HTTPSConnection(address, timeout=300, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


# -- slow and many callers ---------------------------------------------------------------------------------------------


async def answer_to(address: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 300.0)
    writer.close()
    return answer


async def test_a_body_that_is_late_is_refused_and_keeps_no_other_caller_out(server: ServerThread) -> None:
    with running_gateway(server.addresses[0], Door("127.0.0.1", body_s=2.0)) as address:
        slow = [await asyncio.open_connection(*address.split(":")) for _ in range(MAX_CONNECTIONS)]
        for _, writer in slow:
            writer.write(HEAD + b"{")
        assert b'"PARTITION_NOT_FOUND"' in await answer_to(address, GET)
        found = [(await asyncio.wait_for(late.read(), 300.0)).partition(b"\r\n\r\n") for late, _ in slow]
        answers = [(head, body) for head, _, body in found if head]  # the others have lost their places
        assert len(answers) >= MAX_CONNECTIONS // 2
        for head, body in answers:
            assert head.startswith(b"HTTP/1.1 408 ")
            assert json.loads(body)["error"]["reason"] == "INVALID_REQUEST"
        for _, writer in slow:
            writer.close()


async def test_requests_that_do_not_come_lose_their_places_to_those_that_wait(server: ServerThread) -> None:
    with running_gateway(server.addresses[0], Door("127.0.0.1", body_s=1000.0)) as address:
        slow = [await asyncio.open_connection(*address.split(":")) for _ in range(MAX_CONNECTIONS + 8)]
        for number, (_, writer) in enumerate(slow):
            writer.write(HEAD + b"{" if number % 2 else HEAD[:9])
        assert b'"PARTITION_NOT_FOUND"' in await answer_to(address, GET)
        for _, writer in slow:
            writer.close()


async def test_silence_before_a_handshake_takes_a_place_and_loses_it_to_those_that_wait(
    server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki = Pki(tmp_path)
    files = pki.issue("door", "127.0.0.1")
    monkeypatch.setattr("dataplane_http.__main__.Places", partial(Places, most=1))
    with (
        running_gateway(server.addresses[0], ssl_certfile=files.certificate, ssl_keyfile=files.key) as address,
        contextlib.ExitStack() as silent,
    ):
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        first, second = (silent.enter_context(socket.create_connection(place)) for _ in range(2))
        assert ask_at(address, ca=pki.ca)("GET", "/healthz").status == 200
        for peer in (first, second):
            peer.setblocking(False)
            assert peer.recv(1) == b""
        for _ in range(2):  # one with a place and one without, when the gateway stops
            silent.enter_context(socket.create_connection(place))


async def test_an_answer_that_is_not_read_does_not_keep_its_place(
    server: ServerThread, client: DataPlaneClient, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(self: Connection, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection_made(self, transport)

    connection_made = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", made)
    monkeypatch.setattr(connections, "ANSWER_S", 0.1)
    monkeypatch.setattr("dataplane_http.__main__.Places", partial(Places, most=1))
    client.put_samples(["a"], partition, {"answer": ["\1" * 500_000]})  # 6 bytes for each in JSON
    with running_gateway(server.addresses[0]) as address:
        wanted = {"fields": ["answer"], "batch_size": 1}
        claim = ask_at(address)("POST", "/v1/partitions/p/tasks/train/claims", wanted).body["claim_id"]
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(GET.replace(b"partitions/nope", f"claims/{claim}?field=answer".encode()))
        assert await asyncio.wait_for(reader.readexactly(15), 300.0) == b"HTTP/1.1 200 OK"
        assert b'"PARTITION_NOT_FOUND"' in await answer_to(address, GET)
        assert len(await asyncio.wait_for(reader.read(), 300.0)) < 3_000_000
        writer.close()


async def test_however_many_callers_wait_one_timer_looks_for_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    begin_timer = loop.call_later

    def call_later(delay_s: float, look: Callable[[], object]) -> asyncio.TimerHandle:
        timers.append(begin_timer(delay_s, look))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", call_later)
    places, callers = Places(most=1), [Mock(is_arriving=False) for _ in range(9)]
    for caller in callers:
        places.come(caller)
    for caller in callers[1:5]:
        places.go(caller)
    assert [timer.cancelled() for timer in timers].count(False) == 1


@pytest.mark.parametrize("ends", ["closed", "reset"])
async def test_a_caller_that_hangs_up_within_its_body_is_no_error(
    gateway: str, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, leaving = await asyncio.open_connection(*gateway.split(":"))
    leaving.write(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    assert b"100 Continue" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 300.0)
    if ends == "reset":
        linger = struct.pack("ii", 1, 0)
        leaving.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    leaving.close()
    for _ in range(3):  # the gateway has noticed by then
        assert b'"PARTITION_NOT_FOUND"' in await answer_to(gateway, GET)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize(
    ("said", "status"), [(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404), (b"\x16\x03\x01\r\n\r\n", 400)]
)
def test_what_is_not_http_1_is_refused(gateway: str, said: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", int(gateway.rpartition(":")[2])), timeout=300) as peer:
        peer.sendall(said)
        assert peer.recv(4096).startswith(b"HTTP/1.1 %d " % status)
