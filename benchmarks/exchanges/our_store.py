"""Our client for `exchanges.queue_rounds`, as a worker (see `serving`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict

from dataplane_client import DataPlaneClient, KVBatchMeta, connect
from dataplane_client.options import TransportChoice
from exchanges.queue_rounds import Calls
from serving import serve


class Store:
    """A partition."""

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


class Connection:
    """A client, once it is connected. transport: also tells apart the partitions of two workers of one server."""

    def __init__(self) -> None:
        self._client: DataPlaneClient | None = None
        self._transport: TransportChoice = "auto"

    def connect(self, address: str, transport: TransportChoice) -> Mapping[str, Any]:
        self._client, self._transport = connect(address, transport=transport), transport
        return {}

    def open(self, partition: str, fields: list[str]) -> Store:
        if self._client is None:
            raise RuntimeError("there is no connection")
        return Store(self._client, f"{partition} over {self._transport}", fields)


def main() -> None:
    connection = Connection()
    calls = Calls(connection.open)
    names = ("prepare", "prepare_record", "round", "puts")
    serve({"connect": connection.connect, **{name: getattr(calls, name) for name in names}})


if __name__ == "__main__":
    main()
