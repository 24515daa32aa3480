"""Rows of one partition behind the same few verbs: in our client, and in modules with the verbs of TransferQueue.

Also a worker (see `workers`) of either, which puts, lists, gets all fields and clears, under new keys in each round. It
runs in our environment or in TransferQueue's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from tensordict import TensorDict

from dataplane_client import DataPlaneClient, KVBatchMeta, connect
from dataplane_client.options import TransportChoice
from timing import timed
from workload import Form, Workload, arrays, digest, record, touch


class Store(Protocol):
    """The rows of one partition."""

    def put(self, keys: list[str], fields: TensorDict) -> None: ...
    def keys(self) -> list[str]: ...
    def get(self, keys: list[str]) -> Any: ...
    def clear(self, keys: list[str]) -> None: ...


class OurStore:
    """In our client."""

    def __init__(self, client: DataPlaneClient, partition: str, fields: list[str]) -> None:
        self._client, self._partition, self._fields = client, partition, fields
        client.register_partition(partition, fields, 0, ["train"])

    def put(self, keys: list[str], fields: TensorDict) -> None:
        self._client.put_samples(keys, self._partition, fields)

    def keys(self) -> list[str]:
        """Page by page."""
        page = self._client.list_samples(self._partition)
        found = list(page.meta.sample_ids)
        while page.next_page is not None:
            page = self._client.list_samples(self._partition, page=page.next_page)
            found += page.meta.sample_ids
        return found

    def get(self, keys: list[str]) -> Any:
        return self._client.read_columns(KVBatchMeta(self._partition, None, keys), self._fields, layout="auto")

    def clear(self, keys: list[str]) -> None:
        self._client.clear_samples(keys, self._partition)


class ModuleStore:
    """In TransferQueue, or our module in its place: made at the first put, and read with all fields."""

    def __init__(self, module: Any, partition: str) -> None:
        self._module, self._partition = module, partition

    def put(self, keys: list[str], fields: TensorDict) -> None:
        self._module.kv_batch_put(keys, self._partition, fields)

    def keys(self) -> list[str]:
        return list(self._module.kv_list(self._partition)[self._partition])

    def get(self, keys: list[str]) -> Any:
        return self._module.kv_batch_get(keys, self._partition)

    def clear(self, keys: list[str]) -> None:
        self._module.kv_clear(keys, self._partition)


class Calls:
    """The calls of the driver: `connect` or `start_queue`, then the others."""

    _open: Callable[[str, list[str]], Store]
    _store: Store

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.close: Callable[[], None] = lambda: None

    def connect(self, address: str, transport: TransportChoice) -> None:
        client = connect(address, transport=transport)
        self._open = lambda partition, fields: OurStore(client, f"{partition} over {transport}", fields)

    def start_queue(self) -> None:
        from peers import transfer_queue

        transfer_queue.start()
        self._open = lambda partition, _: ModuleStore(transfer_queue.tq, partition)
        self.close = transfer_queue.stop

    def prepare(self, workload: Workload) -> int:
        """Make a workload, and check that it comes back unchanged. Returns its bytes."""
        return self._prepare(workload.partition("exchange"), workload.batch())

    def prepare_record(self, form: Form) -> int:
        """Make the row of a model call, and check that it comes back unchanged. Returns its bytes."""
        return self._prepare(f"calls {form}", record(form))

    def round(self) -> Mapping[str, float]:
        """One round of what was prepared."""
        store, keys = self._store, self._keys()
        return timed(
            put=lambda: store.put(keys, self._fields),
            list=store.keys,
            get=lambda: touch(store.get(keys)),
            clear=lambda: store.clear(keys),
        )

    def puts(self, times: int) -> list[float]:
        """Put what was prepared several times, one after the other. Returns the seconds of each."""
        rounds = {str(number): self._keys() for number in range(times)}
        took = timed(**{name: partial(self._store.put, keys, self._fields) for name, keys in rounds.items()})
        self._store.clear([key for keys in rounds.values() for key in keys])
        return list(took.values())

    def _prepare(self, partition: str, fields: TensorDict) -> int:
        self._fields = fields
        self._store = store = self._open(partition, [str(name) for name, _ in fields.items()])
        keys = self._keys()
        store.put(keys, fields)
        if sorted(store.keys()) != sorted(keys):
            raise RuntimeError(f"{partition}: the list has other keys")
        if digest(store.get(keys)) != digest(fields):
            raise RuntimeError(f"{partition}: a field came back changed")
        store.clear(keys)
        return sum(array.nbytes for array in arrays(fields))

    def _keys(self) -> list[str]:
        number = next(self._numbers)
        return [f"{number}_{row}" for row in range(len(self._fields))]
