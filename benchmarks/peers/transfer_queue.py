"""TransferQueue, with padding by our own codec, the fastest we know, so that only the queue differs.

Runs inside TransferQueue's environment, as a worker (see `workers`). Form "jagged" packs padded tensors, puts nested
tensors, and pads the result. Form "padded" puts the padded rectangles, and pads the result, which the queue has made
nested. Which form is faster depends on the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

from batches import Batch, Spec, build
from dataplane_client import materialize, pack_jagged_fields
from timing import timed

__all__ = ["Calls", "start", "stop", "tq"]

Form = Literal["jagged", "padded"]

_UNITS = 2  # recommended for one node by its configuration; 1 is slower here, 4 and 8 are not faster
_PARTITION = "train"


def start(units: int = _UNITS) -> None:
    """TransferQueue on a Ray of this process, with the storage units that suit one node; on that of a cluster if any."""
    if not ray.is_initialized():
        ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=2 * units + 4)
    storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": units}}
    tq.init(OmegaConf.create({"backend": storage}))


def stop() -> None:
    tq.close()
    ray.shutdown()


class Rounds:
    """Padded tensors in, a padded batch out, under new keys in each round."""

    def __init__(self, batch: Batch, form: Form) -> None:
        self._columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        self._batch, self._form = batch, form
        self._round = itertools.count()
        self()
        for name, column in self._columns.items():
            if not torch.equal(self._last[name].reshape(column.shape), column):
                raise RuntimeError(f"field {name!r} came back changed")

    def __call__(self) -> Mapping[str, float]:
        number = next(self._round)
        keys = [f"{self._batch.name}_{self._form}_{row}_{number}" for row in range(self._batch.rows)]
        times = timed(put=lambda: self._put(keys), read=lambda: self._read(keys))
        tq.kv_clear(keys=keys, partition_id=_PARTITION)
        return times

    def _put(self, keys: list[str]) -> None:
        if self._form == "jagged":
            lengths, ragged = torch.from_numpy(self._batch.lengths), set(self._batch.per_token)
            fields: Any = pack_jagged_fields(self._columns, lengths=lengths, token_aligned_fields=ragged)
        else:
            fields = TensorDict(self._columns, batch_size=[self._batch.rows])
        tq.kv_batch_put(keys=keys, partition_id=_PARTITION, fields=fields)

    def _read(self, keys: list[str]) -> None:
        found = tq.kv_batch_get(keys=keys, partition_id=_PARTITION, select_fields=list(self._columns))
        self._last = materialize(found, "padded")


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        start()
        self._rounds: dict[str, Rounds] = {}
        self.close = stop

    def prepare(self, spec: Spec, form: Form) -> None:
        """Make a batch, send it once, untimed, and check that it comes back unchanged."""
        self._rounds = {key: rounds for key, rounds in self._rounds.items() if key.startswith(f"{spec.name} ")}
        self._rounds[f"{spec.name} {form}"] = Rounds(build(spec), form)

    def round(self, name: str, form: Form) -> Mapping[str, float]:
        """One round of a prepared batch."""
        return self._rounds[f"{name} {form}"]()
