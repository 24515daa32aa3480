"""The client of RL Data Plane.

    from dataplane_client import connect

    with connect("unix:///run/dataplane.sock") as client:
        ...

Importing this package is cheap; torch is loaded when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataplane_client._sync.claim import Claim
    from dataplane_client._sync.client import DataPlaneClient, connect
    from dataplane_client._sync.columns import kv_first_write, read_columns, write_columns
    from dataplane_client._sync.group import Group
    from dataplane_client.batched_data_dict import BatchedDataDict
    from dataplane_client.codec import materialize, pack_jagged_fields, pack_per_token_field
    from dataplane_client.errors import ClaimFencedError, DataPlaneError
    from dataplane_client.meta import KVBatchMeta

_HOMES = {
    "BatchedDataDict": "batched_data_dict",
    "Claim": "_sync.claim",
    "ClaimFencedError": "errors",
    "DataPlaneClient": "_sync.client",
    "DataPlaneError": "errors",
    "Group": "_sync.group",
    "KVBatchMeta": "meta",
    "connect": "_sync.client",
    "kv_first_write": "_sync.columns",
    "materialize": "codec",
    "pack_jagged_fields": "codec",
    "pack_per_token_field": "codec",
    "read_columns": "_sync.columns",
    "write_columns": "_sync.columns",
}

__all__ = [
    "BatchedDataDict",
    "Claim",
    "ClaimFencedError",
    "DataPlaneClient",
    "DataPlaneError",
    "Group",
    "KVBatchMeta",
    "connect",
    "kv_first_write",
    "materialize",
    "pack_jagged_fields",
    "pack_per_token_field",
    "read_columns",
    "write_columns",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
