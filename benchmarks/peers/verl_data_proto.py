"""verl's DataProto: one actor puts it into Ray's object store and another gets it, as verl's driver and workers do.

Runs inside verl's environment, as a worker (see `serving`). Each actor times its own work; the call that passes the
reference is not counted. A get ends when a number of each page is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
import torch
from verl import DataProto  # type: ignore[import-not-found]

from batches import Spec, build
from serving import serve
from timing import seconds, undisturbed
from workload import digest, touch

_METHOD = "VERL_DATAPROTO_SERIALIZATION_METHOD"
_STORE_BYTES = 2 << 30
_CALL_S = 100.0


class Producer:
    """Holds a batch as a DataProto and puts it."""

    def __init__(self) -> None:
        self._proto: Any = None
        self._ref: Any = None

    def build(self, spec: dict[str, Any]) -> None:
        columns = build(Spec(**spec)).columns
        self._proto = DataProto.from_dict({name: torch.from_numpy(column) for name, column in columns.items()})

    def put(self, method: str) -> tuple[float, list[Any]]:
        """The seconds, and the reference in a list, so that Ray does not resolve it."""
        os.environ[_METHOD] = method
        self._ref = None
        with undisturbed():
            took, self._ref = seconds(lambda: ray.put(self._proto))
        return took, [self._ref]

    def digest(self) -> str:
        return digest(self._proto.batch)


class Consumer:
    """Gets the DataProto."""

    def __init__(self) -> None:
        self._last: Any = None

    def get(self, method: str, refs: list[Any]) -> float:
        os.environ[_METHOD] = method
        with undisturbed():
            took, self._last = seconds(lambda: _get(refs[0]))
        return took

    def digest(self) -> str:
        """Of the last get."""
        return digest(self._last.batch)


def _get(ref: Any) -> Any:
    proto = ray.get(ref)
    touch(proto.batch)
    return proto


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        producer: Any = ray.remote(Producer)  # an actor's methods have `remote`, which the types omit
        consumer: Any = ray.remote(Consumer)
        self._producer, self._consumer = producer.remote(), consumer.remote()

    def prepare(self, spec: dict[str, Any], methods: list[str]) -> Mapping[str, Any]:
        """Make the DataProto, and check that every way of serialization gives it back unchanged."""
        _wait(self._producer.build.remote(spec))
        for method in methods:
            self.round(method)
            if _wait(self._consumer.digest.remote()) != _wait(self._producer.digest.remote()):
                raise RuntimeError(f"serialization {method!r}: the DataProto came back changed")
        return {}

    def round(self, method: str) -> Mapping[str, Any]:
        """One round of the DataProto."""
        put, refs = _wait(self._producer.put.remote(method))
        return {"put": put, "read": _wait(self._consumer.get.remote(method, refs))}


def _wait(ref: Any) -> Any:
    return ray.get(ref, timeout=_CALL_S)


def main() -> None:
    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=4, object_store_memory=_STORE_BYTES)
    try:
        calls = Calls()
        serve({"prepare": calls.prepare, "round": calls.round})
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
