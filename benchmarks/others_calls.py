"""The calls behind `others`, each system in processes of its own (see `workers`): a rollout's dict, and checkpoints.

The environments of peers import it, too, so what only one system needs is imported where it is used.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict

from stores import ModuleStore, OurStore, Store
from timing import seconds, timed
from workload import PAGE_BYTES, touch

Lists = dict[str, list[Any]]
"""An array for each row of each field."""
_GENERATION = {"input_ids": torch.int64, "generation_logprobs": torch.float32}
_TRAINER = dict.fromkeys(("prev_logprobs", "reference_logprobs", "advantages"), torch.float32)
_ROLLOUT = {"tokens": torch.int64, "rollout_log_probs": torch.float32, "loss_masks": torch.float32}
PROFILES = {"generation": _GENERATION, "train-ready": _GENERATION | _TRAINER, "rollout": _ROLLOUT}
_RAY_BYTES = 3000 << 20


class Rows(NamedTuple):
    """Rows with lengths between shortest and longest, and a profile's columns."""

    rows: int
    shortest: int
    longest: int
    profile: str = "train-ready"

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


@functools.lru_cache(maxsize=1)
def _lists(rows: Rows) -> Lists:
    return {name: [row.numpy().copy() for row in column.unbind()] for name, column in rows.columns().items()}


def _check(got: Lists, wanted: Lists) -> None:
    for name, arrays in wanted.items():
        if len(got[name]) != len(arrays) or not all(map(np.array_equal, got[name], arrays)):
            raise RuntimeError(f"{name} came back changed")


def _ray_get(refs: list[Any], rows: Rows) -> Mapping[str, float]:
    """In another process than the one that put. A get ends when a number of each page is read."""
    import ray

    got: Lists = {}

    def get() -> None:
        got.update(ray.get(refs[0]))
        for array in itertools.chain(*got.values()):
            array[:: PAGE_BYTES // array.itemsize].sum()

    times = timed(get=get)
    _check(got, _lists(rows))
    return times


class Calls:
    """`connect`, `start_queue` or `start_ray`, then the others. Ray has the calls of dicts only."""

    _store: Store
    _save: Callable[[str], object]
    _load: Callable[[str], object]

    def __init__(self) -> None:
        self._exit = contextlib.ExitStack()
        self.close = self._exit.close

    def connect(self, address: str, profile: str) -> None:
        from dataplane_client import connect

        client = self._exit.enter_context(connect(address, timeout_s=300.0))
        self._store = OurStore(client, "rows", list(PROFILES[profile]))
        self._save = lambda folder: client.create_snapshot(Path(folder).name)
        self._load = lambda folder: client.restore_snapshot(Path(folder).name)

    def start_queue(self, units: int) -> None:
        from peers import transfer_queue

        transfer_queue.start(units)
        self._exit.callback(transfer_queue.stop)
        queue = transfer_queue.tq
        self._store = ModuleStore(queue, "rows")
        self._save, self._load = queue.save_checkpoint, queue.load_checkpoint

    def start_ray(self) -> None:
        import ray

        ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=2, object_store_memory=_RAY_BYTES)
        self._exit.callback(ray.shutdown)

    # -- a rollout's dict ----------------------------------------------------------------------------------------------

    def prepare(self, rows: Rows) -> None:
        self._rows, self._keys = _lists(rows), rows.keys
        self._joined = {name: np.concatenate(arrays) for name, arrays in self._rows.items()}

    def put(self) -> Mapping[str, float]:
        """The arrays of the rows are joined to columns, in buffers that are kept, and *moved*."""
        offsets = torch.tensor([0, *itertools.accumulate(map(len, self._rows["tokens"]))])
        columns = TensorDict({}, batch_size=[len(self._keys)])

        def rebuild() -> None:
            for name, arrays in self._rows.items():
                values = torch.from_numpy(np.concatenate(arrays, out=self._joined[name]))
                columns[name] = torch.nested.nested_tensor_from_jagged(values, offsets)

        times = timed(rebuilt=rebuild, moved=lambda: self._store.put(self._keys, columns))
        return {"put": sum(times.values()), "put, moved": times["moved"]}

    def get(self) -> Mapping[str, float]:
        """*Moved* ends when the values were touched, the get with an array for each row. Checks and clears them."""
        found: dict[str, Any] = {}
        got: Lists = {}

        def move() -> None:
            found.update(self._store.get(self._keys).items())
            touch(found)

        def rebuild() -> None:
            for name, column in found.items():
                got[name] = np.split(column.values().numpy(), column.offsets().numpy()[1:-1])

        times = timed(moved=move, rebuilt=rebuild)
        _check(got, self._rows)
        self._store.clear(self._keys)
        return {"get": sum(times.values()), "get, moved": times["moved"]}

    def ray_round(self, rows: Rows) -> Mapping[str, float]:
        """This process puts the dict as it is, and a task gets it."""
        import ray

        lists, refs = _lists(rows), list[Any]()
        times = timed(put=lambda: refs.append(ray.put(lists)))
        got: Any = ray.remote(_ray_get).remote(refs, rows)
        return {**times, **ray.get(got)}

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def fill(self, rows: Rows) -> int:
        """Put the rows. Returns their bytes."""
        columns = rows.columns()
        self._store.put(rows.keys, TensorDict(columns, batch_size=[rows.rows]))
        return sum(column.values().nbytes for column in columns.values())

    def save(self, folder: str, rows: Rows, writers: int) -> tuple[float, list[float]]:
        """The seconds of a checkpoint, and of each put of one more row of 1,000 tokens that threads make meanwhile."""
        took, stop, row = list[float](), threading.Event(), Rows(1, 1000, 1000, rows.profile).columns()

        def write(name: int) -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                key, fields = f"more_{name}_{number}", TensorDict(dict(row), batch_size=[1])
                took.append(seconds(functools.partial(self._store.put, [key], fields))[0])

        with ThreadPoolExecutor(max(1, writers)) as pool:
            writing = [pool.submit(write, name) for name in range(writers)]
            try:
                time.sleep(0.5 if writers else 0.0)  # so that all of them write when the checkpoint begins
                took.clear()
                saved_s, _ = seconds(lambda: self._save(folder))
            finally:
                stop.set()
        for each in writing:
            each.result()
        return saved_s, took

    def load(self, folder: str, rows: Rows) -> float:
        """The seconds of loading; 64 of the rows must be as they were put."""
        loaded_s, _ = seconds(lambda: self._load(folder))
        picked = slice(0, rows.rows, max(1, rows.rows // 64))
        found, wanted = self._store.get(rows.keys[picked]), _lists(rows)
        got = {name: [row.flatten().numpy() for row in found[name].unbind()] for name in wanted}
        _check(got, {name: arrays[picked] for name, arrays in wanted.items()})
        return loaded_s
