"""Puts and commits of rows, with the padding of per-token fields cut off where the server asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataplane_client._async.transport import AsyncTransport
from dataplane_client._column_messages import column_message
from dataplane_client._padded_puts import may_be_padded, without_padding
from dataplane_client._requests import Put
from dataplane_client.columns_layout import WireColumn
from dataplane_client.errors import InvalidArgumentError
from rl_dataplane.v1 import data_plane_pb2 as pb


async def write_put(transport: AsyncTransport, put: Put, timeout_s: float | None) -> pb.PutSamplesResponse:
    """Send a put; see write_rows."""
    header = put.header
    response: pb.PutSamplesResponse = await write_rows(
        transport, "PutSamples", header, put.columns, header.partition_id, put.sequence_lengths, timeout_s
    )
    return response


async def write_rows(
    transport: AsyncTransport,
    verb: str,
    header: Any,
    columns: Sequence[WireColumn],
    partition_id: str,
    lengths: Sequence[int] | None,
    timeout_s: float | None,
) -> Any:
    """Send a write of rows of a partition. lengths: the tokens of each row, if the caller knows them.

    A write that the server refuses for padding costs two more calls: it asks which fields are per-token, and sends the
    columns again. A refused write has changed nothing, and its request_id may be used again.
    """
    try:
        return await transport.write(verb, header, columns, timeout_s)
    except InvalidArgumentError as error:
        if not may_be_padded(error, columns, lengths):
            raise
        refusal = error
    request = pb.GetPartitionRequest(partition_id=partition_id)
    fields = (await transport.unary("GetPartition", request, timeout_s)).partition.fields
    per_token = {field.name for field in fields if field.per_token}
    cut = without_padding(columns, per_token, lengths or (), f"partition {partition_id!r}")
    if cut is None:
        raise refusal
    del header.columns[:]
    header.columns.extend([column_message(column) for column in cut])
    return await transport.write(verb, header, cut, timeout_s)
