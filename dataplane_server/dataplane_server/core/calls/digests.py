"""Digests: what a producer hashed of each value that it put, kept beside the value and returned with it.

A digest has 8 bytes: the XXH3-64 of the value, 0 for a value without bytes. The digests of a call are one array, a row
for each column. Whoever reads a value hashes it and compares. The core hashes nothing; where the log has checksums of
the same bytes, it compares these, so that a value that was changed on its way is refused before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane_server.core.calls.columns import Columns
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import BeginRead, CommitClaim, PutSamples
from dataplane_server.core.calls.values import Definition, Int64Array

DIGEST_SIZE = 8


def check_hashed(definition: Definition, call: PutSamples | CommitClaim) -> None:
    """Refusal DIGESTS_REQUIRED for a write of values without digests where there must be some, and for an append: what
    a row has and what is added have digests, and the whole has none.
    """
    if not definition.digests or not call.columns:
        return
    if isinstance(call, PutSamples) and call.append:
        raise _required(definition, "values cannot be appended to; put each value whole")
    if not call.hashed:
        raise _required(definition, "this write carries none; its client must hash the values")


def check_checks(definition: Definition, call: BeginRead) -> None:
    """Refusal DIGESTS_REQUIRED for a read that cannot, or does not, compare values with their digests."""
    if not definition.digests:
        return
    if call.token_starts is not None:
        raise _required(definition, "a range of a value's tokens has none; read the values whole")
    if not call.checks_digests:
        raise _required(definition, "this client does not compare them with the values that it reads")


def _required(definition: Definition, rule: str) -> Refusal:
    message = f"values of partition {definition.partition_id!r} have digests: {rule}"
    return Refusal(Reason.DIGESTS_REQUIRED, message, partition_id=definition.partition_id)


def digests_of_write(
    partition_id: str, columns: Columns, sample_ids: Sequence[str], given: bytes, checksums: bytes
) -> Int64Array:
    """The digests of the values of a write. checksums: of the values as the server has them; may be empty. Refusal
    DIGEST_MISMATCH names the first value that is not the one that was hashed.
    """
    count = columns.entries.size
    if len(given) != DIGEST_SIZE * count:
        message = f"partition {partition_id!r}: a write of {count} values came with {len(given)} bytes of digests"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id)
    digests = np.frombuffer(given, "<i8").astype(np.int64, copy=False).reshape(columns.entries.shape)
    if checksums:
        _compare(partition_id, columns, sample_ids, digests, np.frombuffer(checksums, np.int64))
    return digests


def _compare(
    partition_id: str, columns: Columns, sample_ids: Sequence[str], digests: Int64Array, checksums: Int64Array
) -> None:
    differ = np.flatnonzero(digests.ravel() != checksums)
    if differ.size:
        column, row = divmod(int(differ[0]), digests.shape[1])
        field, sample_id = columns.each[column].name, sample_ids[row] if sample_ids else ""
        named = f"sample {sample_id!r}, field {field!r}" if sample_ids else f"field {field!r}"
        message = (
            f"partition {partition_id!r}, {named}: the value that came is not the one that its producer hashed; "
            "nothing was stored"
        )
        metadata = {"partition_id": partition_id, "sample_id": sample_id, "field": field}
        raise Refusal(Reason.DIGEST_MISMATCH, message, **metadata)
