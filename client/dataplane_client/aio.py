"""The asynchronous client: the same verbs, to be awaited.

    from dataplane_client import aio

    async with aio.connect("unix:///run/dataplane.sock") as client:
        async with client.claim("step-7", "train", ["tokens"], 32) as claim:
            ...

What opens something (`connect`, `claim`, `claim_shard`, `adopt_claim`, `reserve_group`) can be entered, as above, or
awaited: `client = await aio.connect(...)`.
"""

from dataplane_client._verbs._async.batching import AsyncBatching, AsyncPendingPut
from dataplane_client._verbs._async.claim import AsyncClaim
from dataplane_client._verbs._async.client import AsyncDataPlaneClient, connect, connect_later
from dataplane_client._verbs._async.columns import kv_first_write, read_columns, write_columns
from dataplane_client._verbs._async.group import AsyncGroup

__all__ = [
    "AsyncBatching",
    "AsyncClaim",
    "AsyncDataPlaneClient",
    "AsyncGroup",
    "AsyncPendingPut",
    "connect",
    "connect_later",
    "kv_first_write",
    "read_columns",
    "write_columns",
]


def __dir__() -> list[str]:
    return __all__
