"""A process on one node of a Ray cluster, which puts and gets a workload through each of the measured systems.

The workload is that of TransferQueue's performance test; see `workload`. A get ends when a number of each page is read.

"ours" is our client, and "our module" is our module in TransferQueue's place. "Ray" is the least that its own transfer
can do: a put copies the bytes, and a get is a call of the actor that put them, which returns them as one array.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import ray

from dataplane_client import connect
from stores import ModuleStore, OurStore, Store
from timing import timed
from workload import PAGE_BYTES, Workload, arrays, digest, touch

TRANSFER_QUEUE, OURS, OUR_MODULE, RAY = "TransferQueue", "ours", "our module", "Ray"


class Member:
    """An actor; the caller applies `ray.remote`. address: of our data plane."""

    def __init__(self, address: str) -> None:
        names = {TRANSFER_QUEUE: "transfer_queue", OUR_MODULE: "dataplane_transfer_queue"}
        self._modules = {name: importlib.import_module(module) for name, module in names.items()}
        self._modules[TRANSFER_QUEUE].init()
        self._modules[OUR_MODULE].init({"backend": {"RLDataPlane": {"address": address}}})
        self._client = connect(address)

    def build(self, workload: Workload) -> tuple[int, str]:
        """Make the batch. Returns its bytes, and a digest of them."""
        self._batch = workload.batch()
        self._bytes = np.concatenate(list(arrays(self._batch)))
        self._copy = self._bytes.copy()
        return self._bytes.nbytes, digest(self._batch)

    def open(self, workload: Workload) -> None:
        """Make the stores."""
        stores = {name: ModuleStore(module, workload.partition(name)) for name, module in self._modules.items()}
        ours = OurStore(self._client, workload.partition(OURS), workload.names)
        self._stores: dict[str, Store] = {**stores, OURS: ours}

    def put(self, system: str, keys: list[str]) -> float:
        """The seconds."""
        if system == RAY:
            return self.copy()
        return timed(put=lambda: self._stores[system].put(keys, self._batch))["put"]

    def get(self, system: str, keys: list[str], putter: Any) -> float:
        """The seconds."""
        if system == RAY:
            return timed(get=lambda: int(ray.get(putter.array.remote())[::PAGE_BYTES].sum()))["get"]
        return timed(get=lambda: touch(self._stores[system].get(keys)))["get"]

    def copy(self) -> float:
        """The seconds in which the bytes are copied within this process."""
        return timed(copy=lambda: np.copyto(self._copy, self._bytes))["copy"]

    def array(self) -> Any:
        """The bytes."""
        return self._copy

    def digest(self, system: str, keys: list[str]) -> str:
        """Of what it gets."""
        return digest(self._stores[system].get(keys))

    def clear(self, system: str, keys: list[str]) -> None:
        self._stores[system].clear(keys)

    def close(self) -> None:
        self._client.close()
        for module in self._modules.values():
            module.close()
