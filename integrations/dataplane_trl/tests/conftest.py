"""TRL's adapter on the server, and producers of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dataplane_client.client import DataPlaneClient, connect
from dataplane_trl import DataPlaneRolloutWorker, RolloutSample, put_rollouts, register_rollouts


@pytest.fixture
def client(address: str, way: str) -> Iterator[DataPlaneClient]:
    """A producer's client."""
    with connect(address, timeout_s=200.0, transport=way) as client:  # type: ignore[arg-type]
        register_rollouts(client)
        yield client


@pytest.fixture
def new_worker(address: str, way: str) -> Iterator[Callable[..., DataPlaneRolloutWorker]]:
    """Workers, which are stopped at the end."""
    made: list[DataPlaneRolloutWorker] = []

    def make(**settings: Any) -> DataPlaneRolloutWorker:
        made.append(DataPlaneRolloutWorker(address, transport=way, timeout_s=200.0, **settings))
        return made[-1]

    yield make
    for worker in made:
        worker.stop()


@pytest.fixture
def put(client: DataPlaneClient) -> Callable[..., list[str]]:
    """Put groups of two samples, named after their groups; returns the samples' names."""

    def groups(names: Sequence[str], model_version: int = 1) -> list[str]:
        for name in names:
            samples = [sample(f"{name}/{index}", model_version) for index in range(2)]
            put_rollouts(client, "rollouts", samples, group=name)
        return [f"{name}/{index}" for name in names for index in range(2)]

    return groups


def sample(name: str, model_version: int = 1) -> RolloutSample:
    return RolloutSample(
        prompt=[{"role": "user", "content": "2 + 2"}],
        completion=name,
        input_ids=np.array([5, 6, 7], np.int64),
        completion_mask=np.array([0, 1, 1], np.int64),
        old_log_probs=np.array([0.0, -0.5, -0.1], np.float32),
        advantage=0.1,
        model_version=model_version,
        metrics={"reward": 1.0},
    )
