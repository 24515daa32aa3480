"""Rows of several puts as one put, and its answer as theirs.

Puts are gathered if their columns are alike: in names, order, kinds, element types and shapes. So each column of the
one put has the values of theirs, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataplane_client._common.arguments import checked_lengths, checked_name, checked_names
from dataplane_client._common.arrays import int64_bytes
from dataplane_client._requests.padded_puts import carried_lengths
from dataplane_client._requests.requests import (
    GivenTags,
    Put,
    checked_tags,
    new_request_id,
    outcomes_of,
    packed_tags,
    receipt_of,
    wire_columns,
)
from dataplane_client._values.codec import Fields
from dataplane_client._values.column_messages import column_message
from dataplane_client._values.columns_layout import WireColumn, join_values, total_bytes
from dataplane_client.errors import UnsupportedTypeError
from dataplane_client.records.meta import KVBatchMeta, Tag
from rl_dataplane.v1 import data_plane_pb2 as pb


@dataclass(frozen=True)
class PutRows:
    """The rows of a put, checked. alike: equal for puts that can be gathered."""

    partition_id: str
    sample_ids: list[str]
    columns: list[WireColumn]
    sequence_lengths: list[int] | None
    tags: list[dict[str, Tag]] | None
    packed_tags: list[bytes]
    size_bytes: int
    alike: tuple[object, ...]

    def receipt(self, generations: bytes, outcomes: bytes) -> KVBatchMeta:
        """The meta of the rows that were put."""
        of_rows = (self.sample_ids, self.columns, self.sequence_lengths, self.tags)
        return receipt_of(self.partition_id, *of_rows, generations, outcomes_of(outcomes, len(self.sample_ids)))


def put_rows(
    where: str,
    partition_id: str,
    sample_ids: Sequence[str],
    fields: Fields | None,
    tags: GivenTags | None,
    sequence_lengths: Sequence[int] | None,
) -> PutRows:
    """The rows of a put; see put_request for `where`."""
    given_partition: object = partition_id
    if isinstance(sample_ids, str) and isinstance(given_partition, (list, tuple)):
        raise UnsupportedTypeError(f"{where}: the sample ids come first, then the partition")
    ids = checked_names("sample id", sample_ids, where)
    columns = wire_columns(fields, ids, where)
    lengths = carried_lengths(fields, checked_lengths(sequence_lengths, ids, where), ids, where)
    row_tags = checked_tags(tags, ids, where)
    return PutRows(
        checked_name("partition id", partition_id, where),
        ids,
        columns,
        lengths,
        row_tags,
        packed_tags(row_tags, ids, where),
        total_bytes(columns),
        (
            lengths is None,
            *[(each.name, each.kind, each.dtype, each.row_shape, each.of_empty_lists) for each in columns],
        ),
    )


def gathered(puts: Sequence[PutRows], caller: str) -> Put:
    """One put of all rows of puts that are alike and name different samples."""
    first, lengths = puts[0], None
    columns = first.columns
    if len(puts) > 1:
        columns = [_joined([put.columns[place] for put in puts]) for place in range(len(columns))]
    if first.sequence_lengths is not None:
        lengths = [length for put in puts for length in put.sequence_lengths or ()]
    ids = [sample_id for put in puts for sample_id in put.sample_ids]
    tags = [packed for put in puts for packed in put.packed_tags or [b""] * len(put.sample_ids)]
    header = pb.PutSamplesHeader(
        request_id=new_request_id(),
        partition_id=first.partition_id,
        sample_ids=ids,
        columns=[column_message(column) for column in columns],
        row_tags=tags if any(tags) else (),
        sequence_lengths=b"" if lengths is None else int64_bytes(lengths),
        caller=caller,
    )
    return Put.of(header, columns, lengths)


def receipts(puts: Sequence[PutRows], response: pb.PutSamplesResponse) -> list[KVBatchMeta]:
    """What each put would have been answered alone."""
    metas, begin = [], 0
    for rows in puts:
        end = begin + len(rows.sample_ids)
        metas.append(rows.receipt(response.generations[8 * begin : 8 * end], response.outcomes[begin:end]))
        begin = end
    return metas


def _joined(columns: Sequence[WireColumn]) -> WireColumn:
    first = columns[0]
    lengths = None if first.lengths is None else np.concatenate([each.lengths for each in columns])
    values = memoryview(join_values(columns))
    return WireColumn(
        first.name, first.kind, first.dtype, first.row_shape, lengths, values, of_empty_lists=first.of_empty_lists
    )
