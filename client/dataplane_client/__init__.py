"""The client of RL Data Plane.

    from dataplane_client import connect

    with connect("unix:///run/dataplane.sock") as client:
        ...

`dataplane_client.aio` has the same verbs as coroutines. Importing this package is cheap; torch is loaded when a name
that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataplane_client import aio, errors, observe
    from dataplane_client._verbs._sync.batching import Batching, PendingPut
    from dataplane_client._verbs._sync.claim import Claim
    from dataplane_client._verbs._sync.client import DataPlaneClient, connect
    from dataplane_client._verbs._sync.columns import kv_first_write, read_columns, write_columns
    from dataplane_client._verbs._sync.group import Group
    from dataplane_client.batched_data_dict import BatchedDataDict
    from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
    from dataplane_client.codec import materialize, pack_jagged_fields, pack_per_token_field, register_type
    from dataplane_client.errors import (
        AppendConflictError,
        AuthenticationError,
        ClaimFencedError,
        ClaimNotFoundError,
        ClaimTimeoutError,
        ClosedError,
        ConditionFailedError,
        CorruptedError,
        DataPlaneError,
        DeadlineError,
        EndOfDataError,
        GroupFencedError,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        OutOfSpaceError,
        PartitionFullError,
        PermissionDeniedError,
        PreconditionError,
        ReplacedError,
        SessionExpiredError,
        SupersededError,
        TooFewRowsError,
        UnavailableError,
        UnsupportedTypeError,
    )
    from dataplane_client.loader import ClaimIterator, ClaimLoader, LoadedBatch
    from dataplane_client.options import ClientOptions, Credentials, TransportChoice
    from dataplane_client.records.descriptions import (
        DeadLetter,
        FieldDescription,
        PartitionDescription,
        SampleDescription,
        ServerStatus,
        TaskStatus,
    )
    from dataplane_client.records.filters import Where
    from dataplane_client.records.flow import DrawBand, FlowPolicy
    from dataplane_client.records.grants import ClaimedGroup, SampledRows
    from dataplane_client.records.listings import (
        ClaimDescription,
        ClaimList,
        ExplainedWait,
        Explanation,
        GivenUpGroup,
        GroupList,
        ReservedGroup,
        SampleGroup,
        SamplePage,
        SessionDescription,
        WaitCause,
        WaitingClaim,
    )
    from dataplane_client.records.meta import KVBatchMeta, PutOutcome, Tag
    from dataplane_client.records.provenance import RowProvenance, ValueProvenance, digest_of_rows
    from dataplane_client.records.tasks import ClaimOrder, TaskPolicy

_HOMES = {
    "_verbs._sync.batching": ["Batching", "PendingPut"],
    "_verbs._sync.claim": ["Claim"],
    "_verbs._sync.client": ["DataPlaneClient", "connect"],
    "_verbs._sync.columns": ["kv_first_write", "read_columns", "write_columns"],
    "_verbs._sync.group": ["Group"],
    "batched_data_dict": ["BatchedDataDict"],
    "codec": ["materialize", "pack_jagged_fields", "pack_per_token_field", "register_type"],
    "records.descriptions": [
        "DeadLetter",
        "FieldDescription",
        "PartitionDescription",
        "SampleDescription",
        "ServerStatus",
        "TaskStatus",
    ],
    "records.filters": ["Where"],
    "records.flow": ["DrawBand", "FlowPolicy"],
    "records.grants": ["ClaimedGroup", "SampledRows"],
    "records.provenance": ["RowProvenance", "ValueProvenance", "digest_of_rows"],
    "records.listings": [
        "ClaimDescription",
        "ClaimList",
        "ExplainedWait",
        "Explanation",
        "GivenUpGroup",
        "GroupList",
        "ReservedGroup",
        "SampleGroup",
        "SamplePage",
        "SessionDescription",
        "WaitCause",
        "WaitingClaim",
    ],
    "loader": ["ClaimIterator", "ClaimLoader", "LoadedBatch"],
    "records.meta": ["KVBatchMeta", "PutOutcome", "Tag"],
    "options": ["ClientOptions", "Credentials", "TransportChoice"],
    "batched_data_dict.packed_tensor": ["PackedTensor"],
    "records.tasks": ["ClaimOrder", "TaskPolicy"],
}
_MODULES = ["aio", "errors", "observe"]

__all__ = [
    "AppendConflictError",
    "AuthenticationError",
    "BatchedDataDict",
    "Batching",
    "Claim",
    "ClaimDescription",
    "ClaimFencedError",
    "ClaimIterator",
    "ClaimList",
    "ClaimLoader",
    "ClaimNotFoundError",
    "ClaimOrder",
    "ClaimTimeoutError",
    "ClaimedGroup",
    "ClientOptions",
    "ClosedError",
    "ConditionFailedError",
    "CorruptedError",
    "Credentials",
    "DataPlaneClient",
    "DataPlaneError",
    "DeadLetter",
    "DeadlineError",
    "DrawBand",
    "EndOfDataError",
    "ExplainedWait",
    "Explanation",
    "FieldDescription",
    "FlowPolicy",
    "GivenUpGroup",
    "Group",
    "GroupFencedError",
    "GroupList",
    "InternalError",
    "InvalidArgumentError",
    "KVBatchMeta",
    "LoadedBatch",
    "NotFoundError",
    "OutOfSpaceError",
    "PackedTensor",
    "PartitionDescription",
    "PartitionFullError",
    "PendingPut",
    "PermissionDeniedError",
    "PreconditionError",
    "PutOutcome",
    "ReplacedError",
    "ReservedGroup",
    "RowProvenance",
    "SampleDescription",
    "SampleGroup",
    "SamplePage",
    "SampledRows",
    "ServerStatus",
    "SessionDescription",
    "SessionExpiredError",
    "SupersededError",
    "Tag",
    "TaskPolicy",
    "TaskStatus",
    "TooFewRowsError",
    "TransportChoice",
    "UnavailableError",
    "UnsupportedTypeError",
    "ValueProvenance",
    "WaitCause",
    "WaitingClaim",
    "Where",
    "aio",
    "connect",
    "digest_of_rows",
    "errors",
    "kv_first_write",
    "materialize",
    "observe",
    "pack_jagged_fields",
    "pack_per_token_field",
    "read_columns",
    "register_type",
    "write_columns",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("rl-dataplane")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "errors")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
