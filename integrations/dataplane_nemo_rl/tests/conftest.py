"""NeMo-RL's adapter on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dataplane_nemo_rl import DataPlaneAdapter


@pytest.fixture
def new_adapter(address: str, way: str) -> Iterator[Callable[..., DataPlaneAdapter]]:
    """Adapters of the server, which are closed at the end."""
    made: list[DataPlaneAdapter] = []

    def make(**settings: object) -> DataPlaneAdapter:
        made.append(DataPlaneAdapter(address, transport=way, timeout_s=200.0, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for adapter in made:
        adapter.close()


@pytest.fixture
def adapter(new_adapter: Callable[..., DataPlaneAdapter]) -> DataPlaneAdapter:
    """A blocking adapter."""
    return new_adapter()
