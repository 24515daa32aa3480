"""The calls behind `others`, each system in processes of its own (see `workers`): a rollout's dict, and checkpoints.

The environments of peers import it, too, so what only one system needs is imported where it is used.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict

from stores import ModuleStore, OurStore, Store
from timing import timed
from workload import PAGE_BYTES

Rollout = dict[str, list[Any]]
_ROLLOUT = {"tokens": np.int64, "rollout_log_probs": np.float32, "loss_masks": np.float32}
_LONGEST = 8192
_LEAST_STORE = 80 << 20  # of Ray
_GENERATION = {"input_ids": torch.int64, "generation_logprobs": torch.float32}
_TRAINER = dict.fromkeys(("prev_logprobs", "reference_logprobs", "advantages"), torch.float32)
PROFILES = {"generation": _GENERATION, "train-ready": _GENERATION | _TRAINER}


class Rows(NamedTuple):
    """Rows of a checkpoint: lengths between shortest and longest, with a profile's columns."""

    rows: int
    shortest: int
    longest: int
    profile: str

    @property
    def keys(self) -> list[str]:
        return [f"row_{row}" for row in range(self.rows)]

    def columns(self) -> dict[str, torch.Tensor]:
        """The same in each process."""
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(self.shortest, self.longest + 1, (self.rows,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return {
            name: torch.nested.nested_tensor_from_jagged((torch.arange(int(offsets[-1])) + number).to(dtype), offsets)
            for number, (name, dtype) in enumerate(PROFILES[self.profile].items())
        }


def rollout(size_bytes: int) -> Rollout:
    """A dict of lists with an array for each sample: 4,096 to 8,192 tokens, with three numbers (16 bytes) a token."""
    made, lengths, left = np.random.default_rng(0), [], size_bytes // 16
    while left > 0:
        lengths.append(min(left, int(made.integers(_LONGEST // 2, _LONGEST + 1))))
        left -= lengths[-1]
    return {name: [made.integers(0, 999, each).astype(kind) for each in lengths] for name, kind in _ROLLOUT.items()}


def _touch(arrays: list[Any]) -> None:
    """Read a number of each page."""
    for array in arrays:
        array[:: PAGE_BYTES // array.itemsize].sum()


class Calls:
    """`join` or `start_ray` and the calls of dicts, or `connect` or `start_queue` and the calls of checkpoints."""

    _store: Store
    _save: Callable[[str], object]
    _load: Callable[[str], object]

    def __init__(self) -> None:
        self._exit = contextlib.ExitStack()
        self.close = self._exit.close
        self._other: Any = None

    # -- a rollout's dict ----------------------------------------------------------------------------------------------

    def prepare_dict(self, size_bytes: int) -> None:
        self._rollout = rollout(size_bytes)
        self._joined: dict[str, Any] = {}
        if self._other is not None:
            import ray

            ray.get(self._other.prepare_dict.remote(size_bytes))

    def join(self, address: str) -> None:
        from dataplane_client import connect

        self._client = self._exit.enter_context(connect(address, timeout_s=300.0))

    def start_ray(self, size_bytes: int) -> None:
        """size_bytes: of the largest dict."""
        import ray

        store = max(size_bytes * 3, _LEAST_STORE)
        ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=2, object_store_memory=store)
        self._exit.callback(ray.shutdown)
        self._other = ray.remote(Calls).remote()

    def put_dict(self, partition: str) -> Mapping[str, float]:
        """`rebuild` joins the arrays of the samples to columns, in buffers that it keeps; `move` puts these."""
        self._client.register_partition(partition, list(_ROLLOUT), 0, ["train"], per_token_fields=list(_ROLLOUT))
        offsets = torch.tensor([0, *itertools.accumulate(map(len, self._rollout["tokens"]))])
        columns: dict[str, Any] = {}

        def rebuild() -> None:
            for name, arrays in self._rollout.items():
                self._joined[name] = np.concatenate(arrays, out=self._joined.get(name))
                values = torch.from_numpy(self._joined[name])
                columns[name] = torch.nested.nested_tensor_from_jagged(values, offsets)

        move = lambda: self._client.put_samples(self._ids(), partition, columns)  # noqa: E731
        return _named("put", timed(rebuilt=rebuild, moved=move))

    def get_dict(self, partition: str) -> Mapping[str, float]:
        """`move` ends when the values were touched, `rebuild` with an array for each sample. Checks and drops them."""
        from dataplane_client import KVBatchMeta

        found: dict[str, Any] = {}
        got: Rollout = {}

        def move() -> None:
            meta = KVBatchMeta(partition, None, self._ids())
            found.update(self._client.read_columns(meta, list(_ROLLOUT), layout="jagged"))
            _touch([column.values().numpy() for column in found.values()])

        def rebuild() -> None:
            for name, column in found.items():
                got[name] = np.split(column.values().numpy(), column.offsets().numpy()[1:-1])

        times = _named("get", timed(moved=move, rebuilt=rebuild))
        self._check(got)
        self._client.drop_partition(partition)
        return times

    def ray_round(self) -> Mapping[str, float]:
        """This process puts the dict as it is, and an actor gets it."""
        import ray

        refs: list[Any] = []
        times = timed(put=lambda: refs.append(ray.put(self._rollout)))
        return {**times, **ray.get(self._other.ray_get.remote(refs))}

    def ray_get(self, refs: list[Any]) -> Mapping[str, float]:
        import ray

        found: Rollout = {}

        def get() -> None:
            found.update(ray.get(refs[0]))
            _touch([array for arrays in found.values() for array in arrays])

        times = timed(get=get)
        self._check(found)
        return times

    def _ids(self) -> list[str]:
        return [f"sample_{row}" for row in range(len(self._rollout["tokens"]))]

    def _check(self, got: Rollout) -> None:
        for name, arrays in self._rollout.items():
            if len(got[name]) != len(arrays) or not all(map(np.array_equal, got[name], arrays)):
                raise RuntimeError(f"{name} came back changed")

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def connect(self, address: str, fields: list[str]) -> None:
        self.join(address)
        self._store = OurStore(self._client, "checkpoint", fields)
        self._save = lambda folder: self._client.create_snapshot(Path(folder).name)
        self._load = lambda folder: self._client.restore_snapshot(Path(folder).name)

    def start_queue(self, units: int) -> None:
        from peers import transfer_queue

        transfer_queue.start(units)
        self._exit.callback(transfer_queue.stop)
        queue = transfer_queue.tq
        self._store, self._save, self._load = (
            ModuleStore(queue, "checkpoint"),
            queue.save_checkpoint,
            queue.load_checkpoint,
        )

    def fill(self, rows: Rows) -> int:
        """Put the rows. Returns their bytes."""
        columns = rows.columns()
        self._store.put(rows.keys, TensorDict(columns, batch_size=[rows.rows]))
        return sum(column.values().nbytes for column in columns.values())

    def save(self, folder: str, rows: Rows, writers: int) -> tuple[float, list[float]]:
        """The seconds of a checkpoint, and of each put of one more row of 1,000 tokens that threads make meanwhile."""
        took: list[float] = []
        stop = threading.Event()
        row = Rows(1, 1000, 1000, rows.profile).columns()
        each = [threading.Thread(target=self._write, args=(name, row, stop, took)) for name in range(writers)]
        for thread in each:
            thread.start()
        try:
            time.sleep(0.5 if writers else 0.0)  # so that all of them write when the checkpoint begins
            took.clear()
            return timed(save=lambda: self._save(folder))["save"], took
        finally:
            stop.set()
            for thread in each:
                thread.join()

    def _write(self, name: int, row: Mapping[str, torch.Tensor], stop: threading.Event, took: list[float]) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            put = partial(self._store.put, [f"more_{name}_{number}"], TensorDict(dict(row), batch_size=[1]))
            took.append(timed(put=put)["put"])

    def load(self, folder: str, rows: Rows) -> float:
        """The seconds of loading; 64 of the rows must be as they were put."""
        seconds = timed(load=lambda: self._load(folder))["load"]
        picked = slice(0, rows.rows, max(1, rows.rows // 64))
        found = self._store.get(rows.keys[picked])
        for name, column in rows.columns().items():
            for got, wanted in zip(found[name].unbind(), column.unbind()[picked], strict=True):
                if not torch.equal(got.flatten(), wanted):
                    raise RuntimeError(f"{name} came back changed")
        return seconds


def _named(step: str, times: Mapping[str, float]) -> Mapping[str, float]:
    return {f"{step}, {name}": seconds for name, seconds in times.items()}
