"""Servers at socket files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def socket(folder: Path) -> Iterator[Path]:
    """The socket of a server. Its mode and that of the memory socket beside it are 0600."""
    path = folder / "dataplane.sock"
    server = ServerThread(ServerConfig(listen=(f"unix://{path}",), limits=Limits(memory_bytes=1 << 20)))
    for file in folder.iterdir():
        file.chmod(0o600)
    yield path
    server.stop()
