"""Servers with TLS and an access file, and the certificates and tokens of their callers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import trustme

from dataplane_client.options import Credentials
from dataplane_server.config import ServerConfig, TlsFiles
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

TOKENS = {name: f"token-of-{name}" for name in ("reader", "producer", "consumer", "admin", "everywhere", "watcher")}
"""The first four have the role of their name in partitions whose names begin with "train"."""


def hashed(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def access(**others: object) -> dict[str, object]:
    """An access file's content: a caller for each role, one that may do everything, and one that may read it."""
    roles = {name: {name: ["train"]} for name in TOKENS} | {"everywhere": {"admin": [""]}, "watcher": {"reader": [""]}}
    callers = [{"name": name, "tokens": [hashed(token)], "roles": roles[name]} for name, token in TOKENS.items()]
    return {"callers": callers, **others}


class Pki:
    """A CA and the files of certificates that it has signed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *identities: str, not_after: datetime | None = None) -> TlsFiles:
        """Sign a certificate. Its files replace those of this name at once, as a Secret's do."""
        found = self._ca.issue_cert(*identities, not_after=not_after)
        files = TlsFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        for file, blobs in ((files.key, [found.private_key_pem]), (files.certificate, found.cert_chain_pems)):
            new = file.with_suffix(".new")
            new.write_bytes(b"".join(blob.bytes() for blob in blobs))
            new.replace(file)
        return files


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    file = tmp_path / "access.json"
    file.write_text(json.dumps(access()))
    return file


Start = Callable[..., ServerThread]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server with some settings; the fixture stops it."""
    threads = []

    def started(**settings: object) -> ServerThread:
        config = ServerConfig(listen=("127.0.0.1:0",), limits=Limits(memory_bytes=4 << 20))
        threads.append(ServerThread(replace(config, **settings)))  # type: ignore[arg-type]
        return threads[-1]

    yield started
    for thread in threads:
        thread.stop()


@pytest.fixture
def secured(start: Start, pki: Pki, access_file: Path) -> ServerThread:
    """A server with TLS on a port that other hosts could reach, and the access file."""
    return start(
        listen=("0.0.0.0:0",),
        http="127.0.0.1:0",
        health="127.0.0.1:0",
        tls=pki.issue("server", "localhost", "127.0.0.1"),
        access=access_file,
    )


def address_of(server: ServerThread) -> str:
    return f"127.0.0.1:{server.addresses[0].rpartition(':')[2]}"


def of(pki: Pki, name: str, **others: str) -> Credentials:
    """The credentials of a caller with a token."""
    return Credentials(ca=str(pki.ca), token=TOKENS[name], **others)
