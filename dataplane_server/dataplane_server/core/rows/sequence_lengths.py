"""One length a row: all fields of a row that are declared per-token have as many entries as the row has tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dataplane_server.core.calls.columns import MAX_ENTRIES, Column
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.fields import Field


def check_sequence_lengths(
    partition_id: str,
    fields: Mapping[str, Field],
    sample_ids: Sequence[str],
    slots: Slots,
    columns: Sequence[Column],
    given: Int64Array | None,
) -> None:
    """Compare the lengths a put brings with one another and with what its rows keep. slots: -1 for rows yet to come.

    A put that replaces every per-token field of a row may change the row's length. Refusal LENGTH_MISMATCH names the
    first row that disagrees and both sources.
    """
    per_token = [column for column in columns if fields[column.name].per_token]
    claims = [(f"field {column.name!r}", column.entries) for column in per_token]
    if given is not None:
        claims.append(("sequence_lengths", given))
    if not claims:
        return
    replaced = {column.name for column in per_token}
    kept = [field for field in fields.values() if field.per_token and field.name not in replaced]
    claims.extend((f"field {field.name!r} as stored", _stored(field, slots)) for field in kept)
    first_source, expected = claims[0]
    for source, lengths in claims[1:]:
        differ = lengths != expected
        if differ.any() and (differ := differ & (lengths >= 0) & (expected >= 0)).any():
            row = int(differ.argmax())
            message = (
                f"partition {partition_id!r}, sample {sample_ids[row]!r}: {first_source} has {expected[row]} tokens, "
                f"{source} has {lengths[row]}; fields declared per-token have one length a row"
            )
            raise Refusal(Reason.LENGTH_MISMATCH, message, partition_id=partition_id, sample_id=sample_ids[row])


def check_given_lengths(sample_ids: Sequence[str], given: Int64Array | None) -> None:
    """None, or for each row its length in tokens, -1 where unknown."""
    if given is None:
        return
    if given.size != len(sample_ids):
        message = f"the call has sequence lengths for {given.size} rows but names {len(sample_ids)} samples"
        raise Refusal(Reason.ROW_COUNT_MISMATCH, message, rows=given.size, samples=len(sample_ids))
    out_of_range = np.flatnonzero((given < -1) | (given > MAX_ENTRIES))
    if out_of_range.size:
        row = int(out_of_range[0])
        message = f"sample {sample_ids[row]!r}: sequence length {given[row]} is not within -1 and {MAX_ENTRIES}"
        raise Refusal(Reason.INVALID_REQUEST, message, sample_id=sample_ids[row])


def _stored(field: Field, slots: Slots) -> Int64Array:
    """Entries of each row that holds the field, -1 elsewhere."""
    lengths = np.full(len(slots), -1, np.int64)
    existing = np.flatnonzero(slots >= 0)
    holding = existing[field.holds(slots[existing])]
    lengths[holding] = field.entries(slots[holding])
    return lengths
