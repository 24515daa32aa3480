"""A process on one node of a Ray cluster, which puts and gets a workload through each of the measured systems.

The workload is that of TransferQueue's performance test: rows x fields x length. In the simple case all fields are
dense float32 of `length`. In the complex case a third of them is dense, a third jagged with 1 to `length` float32 a
row, and a third strings of `length` characters.

A result may be a view of memory that this process has not touched yet. So a get ends when a number of each page is
read.

"ours" is our client, and "our module" is our module in TransferQueue's place. "Ray" is the least that its own transfer
can do: a put copies the bytes, and a get is a call of the actor that put them, which returns them as one array.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from tensordict import NonTensorStack, TensorDict

from dataplane_client import KVBatchMeta, connect
from timing import seconds, undisturbed

TRANSFER_QUEUE, OURS, OUR_MODULE, RAY = "TransferQueue", "ours", "our module", "Ray"
_MODULES = {TRANSFER_QUEUE: "transfer_queue", OUR_MODULE: "dataplane_client.compat.transfer_queue"}
_PAGE_FLOATS = 1024


@dataclass(frozen=True)
class Workload:
    """name: of the setting whose rows these are, or fewer of them."""

    name: str
    rows: int
    fields: int
    length: int
    complex: bool

    @property
    def names(self) -> list[str]:
        return [f"field_{number}" for number in range(self.fields)]

    def partition(self, system: str) -> str:
        return f"{self.name} {self.kind} of {system}"

    @property
    def kind(self) -> str:
        return "complex" if self.complex else "simple"

    def batch(self) -> TensorDict:
        """The same numbers in every process."""
        torch.manual_seed(0)
        kinds = [field % 3 if self.complex else 0 for field in range(self.fields)]
        return TensorDict(dict(zip(self.names, map(self._column, kinds), strict=True)), batch_size=[self.rows])

    def _column(self, kind: int) -> Any:
        if kind == 0:
            return torch.randn(self.rows, self.length)
        if kind == 1:
            lengths = torch.randint(1, self.length + 1, (self.rows,)).tolist()
            return torch.nested.as_nested_tensor([torch.randn(each) for each in lengths], layout=torch.jagged)
        return NonTensorStack(*(f"{row:08d}" * (self.length // 8) for row in range(self.rows)))


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
        self._bytes = np.concatenate(list(_arrays(self._batch)))
        self._copy = self._bytes.copy()
        self._client.register_partition(workload.partition(OURS), workload.names, 0, ["train"])
        return self._bytes.nbytes, _digest(self._batch)

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
            return seconds(lambda: _touch(self._get(system, keys, partition, names)))[0]

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
        return _digest(self._get(system, keys, partition, names))

    def clear(self, system: str, keys: list[str], partition: str) -> None:
        if system == OURS:
            self._client.clear_samples(keys, partition)
        else:
            self._modules[system].kv_clear(keys, partition)

    def close(self) -> None:
        self._client.close()
        for module in self._modules.values():
            module.close()


def _tensors(batch: Any) -> Iterable[torch.Tensor]:
    """The numbers of each tensor, without a copy."""
    for _, column in sorted(batch.items()):
        if isinstance(column, torch.Tensor):
            yield column.values() if column.is_nested else column.flatten()


def _texts(batch: Any) -> Iterable[str]:
    for name, column in sorted(batch.items()):
        if not isinstance(column, torch.Tensor):
            yield from (str(text) for text in batch[name])


def _arrays(batch: Any) -> Iterable[Any]:
    yield from (numbers.numpy().view(np.uint8) for numbers in _tensors(batch))
    yield np.frombuffer("".join(_texts(batch)).encode(), np.uint8)


def _touch_array(array: Any) -> int:
    return int(array[:: 4 * _PAGE_FLOATS].sum())


def _touch(batch: Any) -> float:
    return sum(float(numbers.flatten()[::_PAGE_FLOATS].sum()) for numbers in _tensors(batch))


def _digest(batch: Any) -> str:
    found = hashlib.blake2b()
    for array in _arrays(batch):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
