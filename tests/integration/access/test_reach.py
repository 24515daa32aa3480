"""What answers at which port, and to whom."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.client.cli.reading import run
from tests.hostile.attacks.http2 import Http2Peer
from tests.integration.access.conftest import TOKENS, Pki, Start, address_of, of

from dataplane_client.client import connect
from dataplane_client.errors import AuthenticationError, UnavailableError
from dataplane_client.options import Credentials
from dataplane_server.config import TlsFiles
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as pb

UNKNOWN = "a-token-that-nobody-else-has"
SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]


def listening_ports() -> set[int]:
    """The TCP ports on which this process listens."""
    inodes = {entry.readlink().name for entry in Path("/proc/self/fd").iterdir() if entry.is_socket()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {
        int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes
    }


def open_stream(channel: grpc.Channel, path: str) -> Any:
    stream: Any = channel.stream_stream(path)
    return stream(iter([b""]), timeout=120)


def http_status(url: str, ca: Path, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        request = urllib.request.Request(url, None, headers)  # noqa: S310  # of this test's own server
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca), timeout=120) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_without_credentials_only_health_answers(start: Start, pki: Pki, access_file: Path) -> None:
    before = listening_ports()
    tls = pki.issue("server", "localhost", "127.0.0.1")
    local = "127.0.0.1:0"
    thread = start(listen=("0.0.0.0:0",), http=local, health=local, tls=tls, access=access_file)
    server = thread.server
    addresses = (*server.addresses, server.http_address, server.health_address)
    ports = {int(str(address).rpartition(":")[2]) for address in addresses}
    assert listening_ports() - before == ports
    answers = {}
    with grpc.secure_channel(address_of(thread), grpc.ssl_channel_credentials(pki.ca.read_bytes())) as channel:
        for verb in SERVICE.methods_by_name:
            with pytest.raises(grpc.RpcError) as refused:
                next(open_stream(channel, f"/{SERVICE.full_name}/{verb}"))
            answers[verb] = refused.value.code()
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=120).status == 1
        with pytest.raises(grpc.RpcError) as unknown:
            next(open_stream(channel, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"))
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert set(answers.values()) == {grpc.StatusCode.UNAUTHENTICATED}, answers
    with grpc.insecure_channel(str(server.health_address)) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=120).status == 1
    metrics = f"https://{server.http_address}"
    statuses = [http_status(f"{metrics}/{path}", pki.ca) for path in ("healthz", "metrics", "")]
    assert statuses == [200, 401, 401]
    assert [
        http_status(f"{metrics}/metrics", pki.ca, TOKENS[name]) for name in ("producer", "reader", "everywhere")
    ] == [403, 403, 200]


def test_clients_and_commands_say_which_side_speaks_tls(secured: ServerThread, start: Start, pki: Pki) -> None:
    with pytest.raises(UnavailableError, match=": set DATAPLANE_TLS_CA"):
        connect(address_of(secured), connect_timeout_s=5.0)
    for command in ("status", "doctor"):
        code, text = run(command, "-s", address_of(secured), DATAPLANE_TLS_CA="")
        assert (code, "the server speaks TLS: set DATAPLANE_TLS_CA to the file of its CA" in text) == (1, True), text
        assert "dataplane doctor" not in text
    plain = start(listen=("127.0.0.1:0",))
    with pytest.raises(UnavailableError, match="unset DATAPLANE_TLS_CA"):
        connect(plain.addresses[0], credentials=Credentials(ca=str(pki.ca)), connect_timeout_s=5.0)
    code, text = run("status", "-s", plain.addresses[0], DATAPLANE_TLS_CA=str(pki.ca))
    assert (code, "the server does not speak TLS: unset DATAPLANE_TLS_CA" in text) == (1, True), text


def test_a_key_with_a_pass_phrase_is_refused_and_not_asked_for(start: Start, pki: Pki) -> None:
    tls = pki.issue("server", "127.0.0.1")
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"pass phrase")
    form = serialization.PrivateFormat.PKCS8
    tls.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    with pytest.raises(OSError, match=f"TLS: {tls.key} is encrypted"):
        start(tls=tls)


def test_a_client_says_why_it_does_not_accept_the_servers_certificate(start: Start, pki: Pki, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    valid = pki.issue("valid", "127.0.0.1")
    expired = pki.issue("expired", "127.0.0.1", not_after=datetime(2001, 1, 2, tzinfo=timezone.utc))
    for files, accepted, why in (
        (valid, Pki(other), "another CA"),
        (pki.issue("elsewhere", "elsewhere.example"), pki, "DATAPLANE_TLS_SERVER_NAME"),
        (expired, pki, "has expired"),
    ):
        with pytest.raises(UnavailableError, match=f"the server's certificate .*{why}"):
            connect(start(tls=files).addresses[0], credentials=of(accepted, "reader"), connect_timeout_s=5.0)


def test_a_client_without_a_certificate_gets_nowhere_where_one_is_asked_for(start: Start, pki: Pki) -> None:
    tls = pki.issue("server", "127.0.0.1")
    thread = start(listen=("0.0.0.0:0",), http="127.0.0.1:0", tls=TlsFiles(tls.certificate, tls.key, pki.ca))
    with pytest.raises(UnavailableError):
        connect(address_of(thread), credentials=Credentials(ca=str(pki.ca)), connect_timeout_s=5.0)
    code, text = run("status", "-s", address_of(thread), DATAPLANE_TLS_CA=str(pki.ca))
    assert (code, "speaks TLS" in text) == (1, False), text  # this side does, too
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        http_status(f"https://{thread.http_address}/metrics", pki.ca)
    files = pki.issue("client", "trainer.example")
    shown = Credentials(ca=str(pki.ca), certificate=str(files.certificate), key=str(files.key))
    with connect(address_of(thread), credentials=shown, transport="grpc") as client:
        assert client.partitions() == []


def test_a_certificate_is_a_caller_by_the_names_in_it(start: Start, pki: Pki, access_file: Path) -> None:
    callers = [{"name": "trainer", "certificates": ["trainer.example"], "roles": {"admin": [""]}}]
    access_file.write_text(json.dumps({"callers": callers}))
    tls = pki.issue("server", "127.0.0.1")
    thread = start(tls=TlsFiles(tls.certificate, tls.key, pki.ca), access=access_file)
    for name, refused in (("trainer.example", False), ("grader.example", True)):
        files = pki.issue(name, name)
        shown = Credentials(ca=str(pki.ca), certificate=str(files.certificate), key=str(files.key))
        if refused:
            with pytest.raises(AuthenticationError, match=r"grader\.example"):
                connect(thread.addresses[0], credentials=shown)
        else:
            with connect(thread.addresses[0], credentials=shown) as client:
                client.register_partition("train-1", ["x"], 0, ["t"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize(("allowed", "answered"), [((), False), ((65532,), True)])
def test_loopback_is_open_to_the_servers_own_user_and_those_that_it_allows(
    start: Start, allowed: tuple[int, ...], answered: bool
) -> None:
    address = start(allowed_users=frozenset(allowed)).addresses[0]
    program = f"""
        import os, grpc
        channel = grpc.insecure_channel({address!r})
        os.setgroups([])
        os.setgid(65532)
        os.setuid(65532)
        try:
            channel.unary_unary("/{SERVICE.full_name}/GetServerStatus")(b"", timeout=120)
            print("answered")
        except grpc.RpcError as error:
            print(error.code(), error.details())
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout
    assert ("answered" in said) is answered
    assert answered or "UNAUTHENTICATED loopback is open to the server's own user, and user 65532 calls" in said
    with connect(address, transport="grpc") as client:
        assert client.partitions() == []


def test_a_token_does_not_travel_in_the_clear() -> None:
    with pytest.raises(ValueError, match="trainer:50051"):
        connect("trainer:50051", credentials=Credentials(token=UNKNOWN))


def test_what_a_caller_sends_is_in_no_log_and_in_no_answer(
    secured: ServerThread, pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    for side in ("dataplane_server", "dataplane_client"):
        caplog.set_level("DEBUG", side)
    with pytest.raises(AuthenticationError) as refused:
        connect(address_of(secured), credentials=Credentials(ca=str(pki.ca), token=UNKNOWN))
    with connect(address_of(secured), credentials=of(pki, "everywhere")) as client:
        client.register_partition("train-1", ["x"], 0, ["t"])
    assert UNKNOWN not in f"{refused.value} {refused.value.details} {Credentials(token=UNKNOWN)!r}"
    told = [record.getMessage() for record in caplog.records]
    assert all(any(event in line for line in told) for event in ("caller_refused", "changed_by"))
    assert not [line for line in told if "token-" in line]


def test_a_token_that_is_no_text_is_a_bad_token_on_every_transport(
    start: Start, pki: Pki, access_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listen, local = f"unix://{tmp_path}/s", "127.0.0.1:0"
    tls = pki.issue("server", "127.0.0.1")
    server = start(listen=(listen,), http=local, tls=tls, access=access_file).server
    token, statuses = b"Bearer \xff", []
    for address, path in [
        (server.http_address, "/"),
        (server.http_address, "/metrics"),
        (server.http_address, "/page/sample?partition=train-1&id=a"),
    ]:
        context = ssl.create_default_context(cafile=pki.ca)
        connection = http.client.HTTPSConnection(str(address), timeout=200, context=context)
        connection.request("GET", path, headers={"Authorization": token})
        statuses.append(connection.getresponse().status)
        connection.close()
    assert statuses == [401] * 3
    with contextlib.closing(Http2Peer(f"{tmp_path}/s")) as peer:
        peer.socket.settimeout(120.0)
        peer.begin(f"/{SERVICE.full_name}/GetServerStatus", authorization=token)
        answer = b""
        while b"is unknown, or has ended" not in answer:
            more = peer.socket.recv(65_536)
            assert more, answer
            answer += more
    events = [json.loads(record.getMessage()) for record in caplog.records if record.name == "dataplane_server"]
    assert [event["level"] for event in events if event["event"] == "caller_refused"] == ["warning"]
    assert [event for event in events if event["level"] == "error"] == []


def test_half_a_handshake_keeps_no_one_out_of_http(secured: ServerThread, pki: Pki) -> None:
    host, _, port = str(secured.http_address).rpartition(":")
    with contextlib.ExitStack() as silent:
        for _ in range(8):
            silent.enter_context(socket.create_connection((host, int(port))))
        assert http_status(f"https://{secured.http_address}/healthz", pki.ca) == 200
