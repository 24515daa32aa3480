"""Puts and commits of rows, completed with what only the server knows about their columns: the kind of empty lists, and
which padding to cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dataplane_client._requests.field_kinds import as_field_holds, raise_with_advice, with_exact_floats
from dataplane_client._requests.padded_puts import may_be_padded, without_padding
from dataplane_client._requests.requests import Put
from dataplane_client._values.column_messages import column_message
from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.digests import WriteHeader
from dataplane_client._verbs._async.transport import AsyncTransport
from dataplane_client.errors import InvalidArgumentError, PreconditionError
from rl_dataplane.v1 import data_plane_pb2 as pb


async def write_put(transport: AsyncTransport, put: Put, timeout_s: float | None) -> pb.PutSamplesResponse:
    """Send a put; see write_rows."""
    header = put.header
    response: pb.PutSamplesResponse = await write_rows(
        transport,
        "PutSamples",
        header,
        put.columns,
        header.partition_id,
        1 if header.shared else len(put.sample_ids),
        put.sequence_lengths,
        timeout_s,
    )
    return response


async def write_rows(
    transport: AsyncTransport,
    verb: str,
    header: WriteHeader,
    columns: Sequence[WireColumn],
    partition_id: str,
    n_rows: int,
    lengths: Sequence[int] | None,
    timeout_s: float | None,
) -> Any:
    """Send a write of n_rows rows of a partition. lengths: the tokens of each row, if the caller knows them.

    A column of nothing but empty lists costs one more call before, which asks what its field holds. Padding is cut off
    if this client has seen which fields of the partition are per-token. A write that the server refuses for padding
    costs two more calls: it asks which fields are, and sends the columns again. A refused write has changed nothing,
    and its request_id may be used again. Integers that a field of floats refuses are sent as floats. A repeated commit
    with padding is refused as another call than the one that was answered, which had none; without the padding it gets
    the answer. If the partition's values have digests, the first write costs one more call, unless this client has
    registered the partition.
    """
    send = partial(_send, transport, verb, header, partition_id, n_rows, timeout_s)
    where = f"partition {partition_id!r}"
    if any(column.of_empty_lists for column in columns):
        fields = await _fields_of(transport, partition_id, timeout_s)
        columns = [as_field_holds(column, fields, where) for column in columns]
        _describe(header, columns)
    cut = transport.per_token.cut(columns, partition_id, lengths or ())
    if cut is not None:
        _describe(header, cut)
        try:
            return await send(cut)
        except InvalidArgumentError as error:
            if error.reason != "FIELD_MISMATCH":
                raise
        transport.per_token.forget(partition_id)
        _describe(header, columns)
    try:
        return await send(columns)
    except (InvalidArgumentError, PreconditionError) as error:
        raise_with_advice(error, columns, getattr(header, "sample_ids", ()))
        if (floats := with_exact_floats(error, columns)) is not None:
            _describe(header, floats)
            return await write_rows(transport, verb, header, floats, partition_id, n_rows, lengths, timeout_s)
        if not may_be_padded(error, columns, lengths):
            raise
        refusal = error
    fields = await _fields_of(transport, partition_id, timeout_s)
    per_token = {name for name, field in fields.items() if field.per_token}
    cut = without_padding(columns, per_token, lengths or (), where)
    if cut is None:
        raise refusal
    _describe(header, cut)
    return await send(cut)


async def _send(
    transport: AsyncTransport,
    verb: str,
    header: WriteHeader,
    partition_id: str,
    n_rows: int,
    timeout_s: float | None,
    columns: Sequence[WireColumn],
) -> Any:
    """Send a write, with digests if the partition's values have some."""
    header.hashed, header.digests = partition_id in transport.hashed, b""
    try:
        return await transport.write(verb, header, columns, timeout_s, n_rows)
    except PreconditionError as error:
        if error.reason != "DIGESTS_REQUIRED" or header.hashed:
            raise
    transport.hashed.learn(partition_id, hashed=True)
    header.hashed = True
    return await transport.write(verb, header, columns, timeout_s, n_rows)


async def _fields_of(
    transport: AsyncTransport, partition_id: str, timeout_s: float | None
) -> dict[str, pb.FieldDescription]:
    request = pb.GetPartitionRequest(partition_id=partition_id)
    partition = (await transport.unary("GetPartition", request, timeout_s)).partition
    transport.learn(partition)
    return {field.name: field for field in partition.fields}


def _describe(header: WriteHeader, columns: Sequence[WireColumn]) -> None:
    del header.columns[:]
    header.columns.extend([column_message(column) for column in columns])
