"""A real server for NeMo-RL's adapter, over both ways that values travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.compat.nemo_rl import DataPlaneAdapter
from dataplane_server.testing import running_server


@pytest.fixture(params=["grpc", "shm"])
def way(request: pytest.FixtureRequest) -> str:
    """How values travel."""
    return str(request.param)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A running server."""
    with running_server(listen=f"unix://{tmp_path}/dataplane.sock") as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[DataPlaneClient]:
    """Our own client, to see what the adapter did."""
    with connect(address, timeout_s=20.0) as client:
        yield client


@pytest.fixture
def new_adapter(address: str, way: str) -> Iterator[Callable[..., DataPlaneAdapter]]:
    """Adapters of the server, which are closed at the end."""
    made: list[DataPlaneAdapter] = []

    def make(**settings: object) -> DataPlaneAdapter:
        made.append(DataPlaneAdapter(address, transport=way, timeout_s=20.0, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for adapter in made:
        adapter.close()


@pytest.fixture
def adapter(new_adapter: Callable[..., DataPlaneAdapter]) -> DataPlaneAdapter:
    """A blocking adapter."""
    return new_adapter()
