"""Ray's object store: one actor puts arrays and another reads them, packed and padded by our own codec.

Runs inside TransferQueue's environment, which has Ray, as a worker (see `serving`). Each actor times its own work; the
calls that pass the references are not counted. The arrays come back without a copy, so reading is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
import torch
from tensordict import TensorDict

from batches import Spec, build
from dataplane_client import materialize, pack_jagged_fields
from serving import serve
from timing import seconds, undisturbed


class Producer:
    """Holds a padded batch and puts it packed."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._batch = build(Spec(**spec))
        self._refs: dict[str, Any] = {}

    def put(self) -> tuple[float, dict[str, Any]]:
        with undisturbed():
            took, self._refs = seconds(self._put)
        return took, self._refs

    def _put(self) -> dict[str, Any]:
        columns = {name: torch.from_numpy(column) for name, column in self._batch.columns.items()}
        lengths = columns["input_lengths"]
        packed = pack_jagged_fields(columns, lengths=lengths, token_aligned_fields=set(self._batch.per_token))
        return {name: ray.put(_flat(packed[name]).numpy()) for name in columns}


class Consumer:
    """Reads and pads the batch."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._batch = build(Spec(**spec))
        self._last: Any = None

    def read(self, refs: dict[str, Any]) -> float:
        with undisturbed():
            took, self._last = seconds(lambda: self._read(refs))
        return took

    def check(self) -> bool:
        """Whether the last read equals the producer's batch."""
        found: dict[str, torch.Tensor] = self._last
        expected = {name: torch.from_numpy(column) for name, column in self._batch.columns.items()}
        return all(torch.equal(found[name], column) for name, column in expected.items())

    def _read(self, refs: dict[str, Any]) -> Any:
        arrays = dict(zip(refs, ray.get(list(refs.values())), strict=True))
        lengths = torch.from_numpy(arrays["input_lengths"])
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        shortest, longest = int(lengths.min()), int(lengths.max())
        fields = {}
        for name, array in arrays.items():
            value = torch.from_numpy(array)
            if name in self._batch.per_token:
                value = torch.nested.nested_tensor_from_jagged(
                    value, offsets=offsets, min_seqlen=shortest, max_seqlen=longest
                )
            fields[name] = value
        return materialize(TensorDict(fields, batch_size=[len(lengths)]), "padded")


def _flat(value: Any) -> Any:
    return value.values() if value.is_nested else value


class Calls:
    """The calls of the driver."""

    def prepare(self, spec: dict[str, Any]) -> Mapping[str, Any]:
        """Make the batch on both sides, send it once, untimed, and check that it comes back unchanged."""
        producer: Any = ray.remote(Producer)  # an actor's methods have `remote`, which the types omit
        consumer: Any = ray.remote(Consumer)
        self._producer, self._consumer = producer.remote(spec), consumer.remote(spec)
        self.round()
        if not ray.get(self._consumer.check.remote()):
            raise RuntimeError("a field came back changed")
        return {}

    def round(self) -> Mapping[str, Any]:
        """One round of the batch."""
        put, refs = ray.get(self._producer.put.remote())
        return {"put": put, "read": ray.get(self._consumer.read.remote(refs))}


def main() -> None:
    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    try:
        calls = Calls()
        serve({"prepare": calls.prepare, "round": calls.round})
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
