"""TransferQueue, with padding by our own codec, the fastest we know, so that only the queue differs.

Runs inside TransferQueue's environment, as a worker (see `serving`). Form "jagged" packs padded tensors, puts nested
tensors, and pads the result. Form "padded" puts the padded rectangles, and pads the result, which the queue has made
nested. Which form is faster depends on the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

from batches import Batch, Spec, build
from dataplane_client import BatchedDataDict, materialize, pack_jagged_fields
from serving import serve
from timing import seconds, undisturbed

Form = Literal["jagged", "padded"]

_UNITS = 2  # recommended for one node by its configuration; 1 is slower here, 4 and 8 are not faster
_PARTITION = "train"


class Rounds:
    """Padded tensors in, a padded batch out, under new keys in each round."""

    def __init__(self, batch: Batch, form: Form) -> None:
        self._columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        self._lengths = None if batch.lengths is None else torch.from_numpy(batch.lengths)
        self._per_token = set(batch.per_token)
        self._form = form
        self._rows = batch.rows
        self._round = itertools.count()
        self._name = batch.name
        self._last: BatchedDataDict[Any] | None = None
        self()
        self._check()

    def __call__(self) -> Mapping[str, float]:
        number = next(self._round)
        keys = [f"{self._name}_{self._form}_{row}_{number}" for row in range(self._rows)]
        with undisturbed():
            put, _ = seconds(lambda: self._put(keys))
            read, self._last = seconds(lambda: self._read(keys))
        tq.kv_clear(keys=keys, partition_id=_PARTITION)
        return {"put": put, "read": read}

    def _put(self, keys: list[str]) -> None:
        if self._form == "jagged":
            fields = pack_jagged_fields(self._columns, lengths=self._lengths, token_aligned_fields=self._per_token)
        else:
            fields = TensorDict(self._columns, batch_size=[self._rows])
        tq.kv_batch_put(keys=keys, partition_id=_PARTITION, fields=fields)

    def _read(self, keys: list[str]) -> BatchedDataDict[Any]:
        found = tq.kv_batch_get(keys=keys, partition_id=_PARTITION, select_fields=list(self._columns))
        return materialize(found, "padded")

    def _check(self) -> None:
        for name, column in self._columns.items() if self._last is not None else ():
            found = self._last[name]  # type: ignore[index]
            if not torch.equal(found.reshape(column.shape), column):
                raise RuntimeError(f"field {name!r} came back changed")


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        self._rounds: dict[str, Rounds] = {}

    def prepare(self, spec: dict[str, Any], form: Form) -> Mapping[str, Any]:
        """Make a batch, send it once, untimed, and check that it comes back unchanged."""
        self._rounds = {key: rounds for key, rounds in self._rounds.items() if key.startswith(f"{spec['name']} ")}
        self._rounds[f"{spec['name']} {form}"] = Rounds(build(Spec(**spec)), form)
        return {}

    def round(self, name: str, form: Form) -> Mapping[str, Any]:
        """One round of a prepared batch."""
        return self._rounds[f"{name} {form}"]()


@contextmanager
def running() -> Iterator[None]:
    """TransferQueue on a Ray of this process, with the storage units that suit one node."""
    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=2 * _UNITS + 4)
    try:
        storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": _UNITS}}
        tq.init(OmegaConf.create({"backend": storage}))
        yield
        tq.close()
    finally:
        ray.shutdown()


def main() -> None:
    with running():
        calls = Calls()
        serve({"prepare": calls.prepare, "round": calls.round})


if __name__ == "__main__":
    main()
