"""A put on its way: what callers hand in, checked and packed, and the receipt for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dataplane_client._arguments import checked_generations, checked_lengths, checked_name, checked_names
from dataplane_client._layouts import column_message, generations_of, int64_bytes
from dataplane_client._requests import Fields, new_request_id, row_tags, wire_columns
from dataplane_client.columns_layout import WireColumn
from dataplane_client.meta import KVBatchMeta, Tag
from rl_dataplane.v1 import data_plane_pb2 as pb


@dataclass(frozen=True)
class Put:
    """Rows to be put."""

    header: pb.PutSamplesHeader
    sample_ids: list[str]
    columns: list[WireColumn]
    sequence_lengths: list[int] | None
    tags: list[dict[str, Tag]] | None

    def receipt(self, response: pb.PutSamplesResponse) -> KVBatchMeta:
        return KVBatchMeta(
            partition_id=self.header.partition_id,
            task_name=None,
            sample_ids=self.sample_ids,
            fields=[column.name for column in self.columns],
            sequence_lengths=self.sequence_lengths,
            tags=self.tags,
            generations=generations_of(response.generations, len(self.sample_ids)),
        )


def put_of(
    where: str,
    partition_id: str,
    sample_ids: Sequence[str],
    fields: Fields | None,
    caller: str,
    *,
    tags: Sequence[Mapping[str, Tag]] | None = None,
    sequence_lengths: Sequence[int] | None = None,
    generations: Sequence[int] | None = None,
) -> Put:
    """Errors begin with `where`, and name the field or row."""
    ids = checked_names("sample id", sample_ids, where)
    lengths = checked_lengths(sequence_lengths, ids, where)
    named = checked_generations(generations, ids, where)
    columns = wire_columns(fields, len(ids), where)
    header = pb.PutSamplesHeader(
        request_id=new_request_id(),
        partition_id=checked_name("partition id", partition_id, where),
        sample_ids=ids,
        columns=[column_message(column) for column in columns],
        row_tags=row_tags(tags, len(ids), where),
        sequence_lengths=b"" if lengths is None else int64_bytes(lengths),
        generations=b"" if named is None else int64_bytes(named),
        caller=caller,
    )
    return Put(header, ids, columns, lengths, None if tags is None else [dict(mapping) for mapping in tags])


def shared_put_of(where: str, partition_id: str, fields: Fields, caller: str) -> Put:
    """One row that all rows of a reserved group are to have."""
    columns = wire_columns(fields, 1, where)
    header = pb.PutSamplesHeader(
        request_id=new_request_id(),
        partition_id=partition_id,
        columns=[column_message(column) for column in columns],
        shared=True,
        caller=caller,
    )
    return Put(header, [], columns, None, None)
