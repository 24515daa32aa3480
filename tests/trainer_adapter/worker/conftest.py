"""A worker as the only rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.ranks import be_the_only_rank
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.worker_cases import Layout

from trainer_adapter.worker import AutomodelPolicyWorker

MakeWorker: TypeAlias = Callable[..., AutomodelPolicyWorker]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "model"
    worker_cases.save_model(folder)
    return folder


@pytest.fixture
def make_worker(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorker]:
    """One worker at a time; packing and further keys of the configuration, then arguments of the worker."""
    made: list[AutomodelPolicyWorker] = []

    def make(
        packing: str = "none", changes: dict[str, Any] | None = None, device: str = "cpu", **arguments: Any
    ) -> AutomodelPolicyWorker:
        if made:
            assert made.pop().shutdown()
        be_the_only_rank(monkeypatch)
        config = worker_cases.config(model, Layout(), packing, **(changes or {}))
        config["dtensor_cfg"]["device"] = device
        made.append(AutomodelPolicyWorker(config, **arguments))
        return made[0]

    yield make
    for worker in made:
        assert worker.shutdown()
