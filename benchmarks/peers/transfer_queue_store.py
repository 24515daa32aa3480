"""TransferQueue for `exchanges.queue_rounds`, as a worker (see `serving`), inside TransferQueue's environment."""

from __future__ import annotations

from typing import Any

import transfer_queue as tq
from tensordict import TensorDict

from exchanges.queue_rounds import Calls
from peers.transfer_queue import running
from serving import serve


class Store:
    """A partition. TransferQueue makes it at the first put, and gets all fields that a row has."""

    def __init__(self, partition: str, _fields: list[str]) -> None:
        self._partition = partition

    def put(self, keys: list[str], fields: TensorDict) -> None:
        tq.kv_batch_put(keys=keys, partition_id=self._partition, fields=fields)

    def keys(self) -> list[str]:
        return list(tq.kv_list(self._partition)[self._partition])

    def get(self, keys: list[str]) -> Any:
        return tq.kv_batch_get(keys=keys, partition_id=self._partition)

    def clear(self, keys: list[str]) -> None:
        tq.kv_clear(keys=keys, partition_id=self._partition)


def main() -> None:
    with running():
        calls = Calls(Store)
        names = ("prepare", "prepare_record", "round", "puts")
        serve({name: getattr(calls, name) for name in names})


if __name__ == "__main__":
    main()
