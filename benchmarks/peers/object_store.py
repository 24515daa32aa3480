"""Ray's object store: one actor puts a batch and another gets it. A worker (see `workers`).

- Way "arrays": packed and padded by our own codec. The arrays come back without a copy, so reading is padding. Runs
  inside TransferQueue's environment, which has Ray and our client.
- Ways "" and "numpy": verl's DataProto, as its driver and workers do, in its two serializations. Runs inside verl's
  environment. A get ends when a number of each page is read.

Each actor times its own work; the call that passes the references is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
import torch

from batches import Spec, build
from timing import timed
from workload import touch

_METHOD = "VERL_DATAPROTO_SERIALIZATION_METHOD"
_STORE_BYTES = 2 << 30
_CALL_S = 100.0


class Side:
    """An actor: it puts its batch, or gets that of the other."""

    def __init__(self, spec: Spec, way: str) -> None:
        os.environ[_METHOD] = way
        self._batch, self._way = build(spec), way
        self._columns = {name: torch.from_numpy(column) for name, column in self._batch.columns.items()}
        self._refs: list[Any] = []
        if way != "arrays":
            from verl import DataProto

            self._proto = DataProto.from_dict(self._columns)

    def put(self) -> tuple[Mapping[str, float], list[Any]]:
        """The seconds, and the references in a list, so that Ray does not resolve them."""
        self._refs = []
        return timed(put=self._put), self._refs

    def get(self, refs: list[Any]) -> Mapping[str, float]:
        return timed(read=lambda: self._get(refs))

    def check(self) -> None:
        for name, column in self._columns.items():
            if not torch.equal(self._last[name], column):
                raise RuntimeError(f"field {name!r} came back changed")

    def _put(self) -> None:
        if self._way != "arrays":
            self._refs = [ray.put(self._proto)]
            return
        from dataplane_client import pack_jagged_fields

        lengths = self._columns["input_lengths"]
        packed = pack_jagged_fields(self._columns, lengths=lengths, token_aligned_fields=set(self._batch.per_token))
        flat = (value.values() if value.is_nested else value for value in map(packed.get, self._columns))
        self._refs = [ray.put(value.numpy()) for value in flat]

    def _get(self, refs: list[Any]) -> None:
        if self._way != "arrays":
            self._last = ray.get(refs[0]).batch
            touch(self._last)
            return
        from tensordict import TensorDict

        from dataplane_client import materialize

        fields = dict(zip(self._columns, map(torch.from_numpy, ray.get(refs)), strict=True))
        lengths = fields["input_lengths"]
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        bounds = {"min_seqlen": int(lengths.min()), "max_seqlen": int(lengths.max())}
        for name in self._batch.per_token:
            fields[name] = torch.nested.nested_tensor_from_jagged(fields[name], offsets=offsets, **bounds)
        self._last = materialize(TensorDict(fields, batch_size=[len(lengths)]), "padded")


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=8, object_store_memory=_STORE_BYTES)
        self._sides: dict[str, tuple[Any, Any]] = {}

    def prepare(self, spec: Spec, ways: list[str]) -> None:
        """Make the batch on both sides, and check that every way gives it back unchanged."""
        self._sides = {}
        actor: Any = ray.remote(Side)  # an actor's methods have `remote`, which the types omit
        for way in ways:
            self._sides[way] = (actor.remote(spec, way), actor.remote(spec, way))
            self.round(way)
            _wait(self._sides[way][1].check.remote())

    def round(self, way: str) -> Mapping[str, float]:
        """One round of the batch."""
        producer, consumer = self._sides[way]
        put, refs = _wait(producer.put.remote())
        return {**put, **_wait(consumer.get.remote(refs))}

    def close(self) -> None:
        ray.shutdown()


def _wait(ref: Any) -> Any:
    return ray.get(ref, timeout=_CALL_S)
