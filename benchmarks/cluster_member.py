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
from tensordict import TensorDict

from dataplane_client import KVBatchMeta, connect
from timing import seconds, undisturbed
from workload import Workload, arrays, digest, touch

TRANSFER_QUEUE, OURS, OUR_MODULE, RAY = "TransferQueue", "ours", "our module", "Ray"
_MODULES = {TRANSFER_QUEUE: "transfer_queue", OUR_MODULE: "dataplane_transfer_queue"}
_PAGE_BYTES = 4096


class Member:
    """An actor; the caller applies `ray.remote`. address: of our data plane."""

    def __init__(self, address: str) -> None:
        self._modules = {name: importlib.import_module(module) for name, module in _MODULES.items()}
        self._modules[TRANSFER_QUEUE].init()
        self._modules[OUR_MODULE].init({"backend": {"RLDataPlane": {"address": address}}})
        self._client = connect(address)
        self._batch = TensorDict({}, batch_size=[0])
        self._bytes = self._copy = np.empty(0, np.uint8)

    def prepare(self, workload: Workload) -> tuple[int, str]:
        """Make the batch. Returns its bytes, and a digest of them."""
        self._batch = workload.batch()
        self._bytes = np.concatenate(list(arrays(self._batch)))
        self._copy = self._bytes.copy()
        self._client.register_partition(workload.partition(OURS), workload.names, 0, ["train"])
        return self._bytes.nbytes, digest(self._batch)

    def put(self, system: str, keys: list[str], partition: str) -> float:
        """The seconds."""
        with undisturbed():
            if system == RAY:
                return seconds(lambda: np.copyto(self._copy, self._bytes))[0]
            if system == OURS:
                return seconds(lambda: self._client.put_samples(keys, partition, self._batch))[0]
            module = self._modules[system]
            return seconds(lambda: module.kv_batch_put(keys, partition, self._batch))[0]

    def array(self) -> Any:
        """The bytes."""
        return self._copy

    def get(self, system: str, keys: list[str], partition: str, names: list[str], putter: Any) -> float:
        """The seconds."""
        with undisturbed():
            if system == RAY:
                return seconds(lambda: _touch_array(ray.get(putter.array.remote())))[0]
            return seconds(lambda: touch(self._get(system, keys, partition, names)))[0]

    def _get(self, system: str, keys: list[str], partition: str, names: list[str]) -> Any:
        """All fields."""
        if system == OURS:
            return self._client.read_columns(KVBatchMeta(partition, None, keys), names, layout="auto")
        return self._modules[system].kv_batch_get(keys, partition)

    def copy(self) -> float:
        """The seconds of a get that copies the bytes within this process."""
        return seconds(lambda: np.copyto(self._copy, self._bytes))[0]

    def digest(self, system: str, keys: list[str], partition: str, names: list[str]) -> str:
        """Of what it gets."""
        return digest(self._get(system, keys, partition, names))

    def clear(self, system: str, keys: list[str], partition: str) -> None:
        if system == OURS:
            self._client.clear_samples(keys, partition)
        else:
            self._modules[system].kv_clear(keys, partition)

    def close(self) -> None:
        self._client.close()
        for module in self._modules.values():
            module.close()


def _touch_array(array: Any) -> int:
    return int(array[::_PAGE_BYTES].sum())
