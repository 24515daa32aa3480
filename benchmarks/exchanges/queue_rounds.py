"""Rounds that our client and TransferQueue run alike: put, list, get all fields, clear, under new keys in each round.

Runs in a worker of ours and in one inside TransferQueue's environment; each has its own `Store`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from tensordict import TensorDict

from exchanges.call_record import Form, record
from timing import seconds, undisturbed
from workload import Workload, arrays, digest, touch


class Store(Protocol):
    """A client of the measured system, for the rows of one partition."""

    def put(self, keys: list[str], fields: TensorDict) -> None: ...
    def keys(self) -> list[str]: ...
    def get(self, keys: list[str]) -> Any: ...
    def clear(self, keys: list[str]) -> None: ...


Open = Callable[[str, list[str]], Store]
"""Opens a partition by name, with its fields."""


class Calls:
    """The calls of the driver."""

    def __init__(self, opened: Open) -> None:
        self._open = opened
        self._numbers = itertools.count()
        self._fields = TensorDict({}, batch_size=[0])
        self._store: Store | None = None

    def prepare(self, workload: dict[str, Any]) -> Mapping[str, Any]:
        """Make a workload, and check that it comes back unchanged. Returns its bytes."""
        made = Workload(**workload)
        return self._prepare(made.partition("exchange"), made.batch())

    def prepare_record(self, form: Form) -> Mapping[str, Any]:
        """Make the row of a model call, and check that it comes back unchanged. Returns its bytes."""
        return self._prepare(f"calls {form}", record(form))

    def round(self) -> Mapping[str, Any]:
        """One round of what was prepared."""
        store, fields, keys = self._prepared(), self._fields, self._keys()
        with undisturbed():
            put, _ = seconds(lambda: store.put(keys, fields))
            listed, _ = seconds(store.keys)
            get, _ = seconds(lambda: touch(store.get(keys)))
            clear, _ = seconds(lambda: store.clear(keys))
        return {"put": put, "list": listed, "get": get, "clear": clear}

    def puts(self, times: int) -> Mapping[str, Any]:
        """Put what was prepared several times, one after the other. Returns the seconds of each."""
        store, fields = self._prepared(), self._fields
        rounds = [self._keys() for _ in range(times)]
        with undisturbed():
            took = [seconds(partial(store.put, keys, fields))[0] for keys in rounds]
        store.clear([key for keys in rounds for key in keys])
        return {"seconds": took}

    def _prepare(self, partition: str, fields: TensorDict) -> Mapping[str, Any]:
        self._fields = fields
        self._store = store = self._open(partition, [str(name) for name, _ in fields.items()])
        keys = self._keys()
        store.put(keys, fields)
        if sorted(store.keys()) != sorted(keys):
            raise RuntimeError(f"{partition}: the list has other keys")
        if digest(store.get(keys)) != digest(fields):
            raise RuntimeError(f"{partition}: a field came back changed")
        store.clear(keys)
        return {"bytes": sum(array.nbytes for array in arrays(fields))}

    def _prepared(self) -> Store:
        if self._store is None:
            raise RuntimeError("nothing was prepared")
        return self._store

    def _keys(self) -> list[str]:
        number = next(self._numbers)
        return [f"{number}_{row}" for row in range(len(self._fields))]
