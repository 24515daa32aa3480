"""Certificates and tokens are replaced under load, and no call fails."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.access.conftest import Pki, Start, address_of, hashed, of
from tests.waiting import eventually

from dataplane_client.client import connect
from dataplane_client.errors import AuthenticationError
from dataplane_client.options import Credentials
from dataplane_server.config import TlsFiles
from dataplane_server.testing import ServerThread


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rotations", [1, pytest.param(3, marks=pytest.mark.long)])
def test_certificates_and_tokens_are_replaced_under_load_without_a_failed_call(
    start: Start, pki: Pki, tmp_path: Path, rotations: int
) -> None:
    file, token_file = tmp_path / "access.json", tmp_path / "token"

    def accept(*tokens: str) -> None:
        caller = {"name": "trainer", "tokens": [hashed(token) for token in tokens], "roles": {"admin": [""]}}
        file.with_suffix(".new").write_text(json.dumps({"callers": [caller]}))
        file.with_suffix(".new").replace(file)

    def send(token: str) -> None:
        token_file.with_suffix(".new").write_text(f"{token}\n")
        token_file.with_suffix(".new").replace(token_file)

    accept("0")
    send("0")
    tls, shown = pki.issue("server", "127.0.0.1"), pki.issue("client", "trainer.example")
    server = start(listen=("0.0.0.0:0",), tls=TlsFiles(tls.certificate, tls.key, pki.ca), access=file)
    credentials = Credentials(
        ca=str(pki.ca), certificate=str(shown.certificate), key=str(shown.key), token_file=str(token_file)
    )
    address, stopping, failed, calls = address_of(server), threading.Event(), [], [0, 0]

    def work(n: int) -> None:
        try:
            with connect(address, credentials=credentials, first_backoff_s=0.01) as client:
                while not stopping.is_set():
                    client.put_samples([f"{n}-{calls[n]}"], "train", {"x": [1]}, timeout_s=120.0)
                    with connect(address, credentials=credentials) as another:  # with a handshake
                        another.claim("train", "t", ["x"], 1, timeout_s=120.0).commit()
                    calls[n] += 1
        except Exception as error:  # noqa: BLE001  # the test tells it
            failed.append(error)

    with connect(address, credentials=credentials) as client:
        client.register_partition("train", ["x"], 0, ["t"])
    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for rotation in range(1, rotations + 1):
        accept(str(rotation - 1), str(rotation))  # both, for as long as callers may have the old one
        pki.issue("server", "127.0.0.1")
        pki.issue("client", "trainer.example")
        time.sleep(1.3)  # a second is how late files may be looked at
        send(str(rotation))
        time.sleep(1.3)
        before = list(calls)
        # calls that began with the old token have ended
        eventually(lambda: failed or all(now > then + 1 for now, then in zip(calls, before, strict=True)))  # noqa: B023
        assert failed == []
        accept(str(rotation))
    stopping.set()
    for thread in threads:
        thread.join()
    assert failed == []
    host, _, port = address.rpartition(":")
    assert ssl.get_server_certificate((host, int(port))).strip() in tls.certificate.read_text()
    time.sleep(1.3)
    with pytest.raises(AuthenticationError):
        connect(address, credentials=replace(credentials, token="0", token_file=None))  # noqa: S106  # the first one
    file.write_text("{")  # the last good one stays
    time.sleep(1.3)
    with connect(address, credentials=credentials) as client:
        assert client.partition("train").rows == sum(calls)


def test_a_connection_with_former_certificates_ends_with_its_last_call(secured: ServerThread, pki: Pki) -> None:
    address, shown = address_of(secured), pki.issue("client", "trainer.example")
    credentials = of(pki, "everywhere", certificate=str(shown.certificate), key=str(shown.key))
    with connect(address, credentials=credentials, transport="grpc") as client:
        client.server_status()
        assert connections_to(address) == 1
        for _ in range(2):
            pki.issue("client", "trainer.example")
            time.sleep(1.3)  # a second is how late files may be looked at
            client.server_status()
            eventually(lambda: connections_to(address) == 1)


def test_files_that_are_missing_or_invalid_leave_the_last_ones_in_force(secured: ServerThread, pki: Pki) -> None:
    address, shown, ca = address_of(secured), pki.issue("client", "trainer.example"), pki.ca.read_bytes()
    credentials = of(pki, "everywhere", certificate=str(shown.certificate), key=str(shown.key))
    steps: list[Callable[[], object]] = [
        pki.ca.unlink,
        lambda: pki.ca.write_text("data"),
        lambda: pki.ca.write_bytes(ca),
        lambda: pki.issue("other", "trainer.example").key.replace(shown.key),
        lambda: pki.issue("client", "trainer.example"),
    ]
    with connect(address, credentials=credentials, transport="grpc") as client:
        for step in steps:
            step()
            time.sleep(1.3)  # a second is how late files may be looked at
            client.server_status()
        eventually(lambda: connections_to(address) == 1)


def connections_to(address: str) -> int:
    """How many TCP connections are open to a server of this host."""
    port, established = int(address.rpartition(":")[2]), "01"
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    return sum(int(line[2].rpartition(":")[2], 16) == port and line[3] == established for line in lines)
