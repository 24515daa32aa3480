"""TransferQueue 0.1.11 with SimpleStorage (`pip install TransferQueue`), on a Ray of its own.

Rows are keys with jagged columns, of `kv_batch_put`, and claims are `get_meta` with a task, which marks rows consumed
at delivery: there is no lease and no commit. A claim gets exactly n rows, so the driver asks for fewer and fewer. The
controller's polling mode says when there are not enough. Its bound (`total_storage_size`) is a number of samples of the
whole system, chosen when it starts; checkpoints are written on request, so rows put since are gone with the process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
import transfer_queue
from tensordict import TensorDict

from dataplane_conformance.drivers.ray_host import RayHost, join
from dataplane_conformance.drivers.tensors import tensor_of, values_of
from dataplane_conformance.system import Claimed, Counts, Driver, Lack, Row, Space, Value

_START = """
import transfer_queue
from omegaconf import OmegaConf
transfer_queue.init(OmegaConf.create({"controller": {"polling_mode": True}}))
"""
_LOOK_S = 0.02


class _Client:
    def __init__(self, address: str, space: Space) -> None:
        join(address, "conformance")
        transfer_queue.init()
        self._client: Any = transfer_queue.get_client()
        self._space, self._claims = space, {}  # type: ignore[var-annotated]

    def put(self, rows: Sequence[Row]) -> None:
        columns = {
            field: torch.nested.as_nested_tensor([tensor_of(row.values[field]) for row in rows], layout=torch.jagged)
            for field in self._space.fields
        }
        fields = TensorDict(columns, batch_size=[len(rows)])
        transfer_queue.kv_batch_put(keys=[row.id for row in rows], partition_id=self._space.name, fields=fields)

    def claim(self, task: str, n: int, wait_s: float, least: int) -> Claimed | None:
        until, size = time.monotonic() + wait_s, n
        while True:
            meta = self._client.get_meta(list(self._space.fields), size, self._space.name, task_name=task)
            if meta.size:
                break
            size = max(least, size // 2)
            if size == least:
                if time.monotonic() >= until:
                    return None
                time.sleep(_LOOK_S)
        ids = self._client.kv_retrieve_keys(meta.global_indexes, self._space.name)
        name = uuid.uuid4().hex
        self._claims[name] = ids
        return Claimed(name, list(ids))

    def read(self, claim: str) -> dict[str, dict[str, Value]]:
        ids = self._claims[claim]
        found = transfer_queue.kv_batch_get(ids, self._space.name, list(self._space.fields))
        return values_of(found, self._space.fields, ids)

    def commit(self, claim: str) -> None:
        """Delivered rows are consumed."""

    def remove(self, ids: Sequence[str]) -> None:
        transfer_queue.kv_clear(list(ids), self._space.name)

    def counts(self, task: str) -> Counts:
        consumed = self._client.get_consumption_status(task, self._space.name)[1]
        return Counts(int((consumed == 0).sum()), 0, int(consumed.sum()))


class TransferQueue(RayHost, Driver):
    """A Ray of its own with controller and storage units."""

    lacks: frozenset[Lack] = frozenset({"abandon", "budget", "disk", "groups", "lease", "staleness"})
    connect = _Client

    prepare = _START

    def versions(self) -> str:
        return f"TransferQueue {version('TransferQueue')}, SimpleStorage, {super().versions()}"
