"""The module on a real server, over both ways that values travel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

import dataplane_transfer_queue as tq
from dataplane_server.testing import running_server
from dataplane_transfer_queue import _job_address


@pytest.fixture
def address(way: str, tmp_path: Path) -> Iterator[str]:
    """A running server, to which clients find only this way."""
    with running_server(listen=f"unix://{tmp_path}/dataplane.sock" if way == "shm" else "127.0.0.1:0") as address:
        yield address


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process belongs to no Ray job, also where other tests have started Ray in it."""
    monkeypatch.setattr(_job_address, "ray_of_process", lambda: None)


@pytest.fixture(autouse=True)
def closed(job: None) -> Iterator[None]:
    """No test leaves a connection to the next one."""
    yield
    tq.close()


@pytest.fixture
def started(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process uses the server."""
    monkeypatch.setenv("DATAPLANE_SERVER", address)
    tq.init()


@pytest.fixture
def native(address: str, started: None) -> tq.TransferQueueClient:
    """The native face."""
    return tq.get_client()


@pytest.fixture
def columns() -> Callable[..., TensorDict]:
    """Columns of some rows."""

    def make(rows: int, **fields: object) -> TensorDict:
        return TensorDict(fields, batch_size=[rows])

    return make


@pytest.fixture
def plain() -> Callable[[TensorDict], dict[str, object]]:
    """Columns as lists, with what kind of column each is."""
    return lambda batch: {str(name): kind_and_rows(batch.get(name)) for name in batch.keys()}  # noqa: SIM118 - not rows


def kind_and_rows(column: object) -> tuple[str, list[object]]:
    if isinstance(column, torch.Tensor):
        rows: list[object] = [row.tolist() for row in column.unbind()]
        return (str(column.layout).removeprefix("torch.") if column.is_nested else "dense"), rows
    assert isinstance(column, NonTensorStack)
    return "objects", [row.data for row in column.unbind(0)]


def parameters_of(function: Callable[..., object]) -> str:
    """Names and defaults."""
    bare = [
        each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(bare))[1:-1]
