"""Servers at socket files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane_server.testing import running_server


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
    with running_server(listen=f"unix://{path}", memory_bytes=1 << 20):
        for file in folder.iterdir():
            file.chmod(0o600)
        yield path
