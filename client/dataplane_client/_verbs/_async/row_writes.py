"""Puts and commits of rows, completed with what only the server knows about their columns: the kind of empty lists, and
which padding to cut off.
"""

from __future__ import annotations

from typing import Any

from dataplane_client._connect.deadline import Deadline
from dataplane_client._requests.field_kinds import (
    as_field_holds,
    may_be_floats,
    raise_with_advice,
    with_exact_floats,
    with_known_floats,
)
from dataplane_client._requests.padded_puts import may_be_padded, without_known_padding, without_padding
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._verbs._async.transport import AsyncTransport
from dataplane_client.errors import InvalidArgumentError, PreconditionError
from rl_dataplane.v1 import data_plane_pb2 as pb


async def write_rows(transport: AsyncTransport, write: RowWrite, timeout_s: float | None) -> Any:
    """Send a write; returns the response to its verb. All calls for it share one deadline.

    A column of nothing but empty lists costs one more call before, which asks what its field holds. Padding is cut off
    if this client has seen which fields of the partition are per-token. A write that the server refuses for padding
    costs two more calls: it asks which fields are, and sends the columns again. A refused write has changed nothing,
    and its request_id may be used again. Integers that a field of floats refuses are sent as floats. A repeated commit
    with padding, or with such integers, is refused as another call than the one that was answered, which had none;
    sent as that was, it gets the answer. If the partition's values have digests, the first write costs one more call,
    unless this client has registered the partition.
    """
    deadline = transport.deadline(timeout_s)
    where, sample_ids = f"partition {write.partition_id!r}", getattr(write.header, "sample_ids", ())
    if any(column.of_empty_lists for column in write.columns):
        partition = await _partition_of(transport, write, deadline)
        fields = {field.name: field for field in partition.fields}
        write.send_instead([as_field_holds(column, fields, where, sample_ids) for column in write.columns])
    given, lengths = write.columns, write.lengths or ()
    cut = without_known_padding(given, transport.known.of(write.partition_id).per_token, lengths)
    if cut is not None:
        write.send_instead(cut)
        try:
            return await _send(transport, write, deadline)
        except (InvalidArgumentError, PreconditionError) as error:
            if error.reason not in ("FIELD_MISMATCH", "LENGTH_MISMATCH") and not may_be_floats(error, cut):
                raise  # the others may come of what is known: more fields are per-token by now, or fewer
        transport.known.forget(write.partition_id)
        write.send_instead(given)
    try:
        return await _send(transport, write, deadline)
    except (InvalidArgumentError, PreconditionError) as error:
        raise_with_advice(error, given, sample_ids)
        if (floats := with_exact_floats(error, given)) is not None:
            write.send_instead(floats)
            return await write_rows(transport, write, deadline.left_s)
        if not may_be_padded(error, given, write.lengths) and not may_be_floats(error, given):
            raise
        refusal = error
    partition, instead = await _partition_of(transport, write, deadline), given
    if min(lengths, default=-1) >= 0:
        per_token = {field.name for field in partition.fields if field.per_token}
        instead = without_padding(given, per_token, lengths, where) or given
    instead = with_known_floats(instead, partition)
    if all(new is old for new, old in zip(instead, given, strict=True)):
        raise refusal
    write.send_instead(instead)
    return await _send(transport, write, deadline)


async def _send(transport: AsyncTransport, write: RowWrite, deadline: Deadline) -> Any:
    """Send a write, with digests if the partition's values have some."""
    header = write.header
    header.hashed, header.digests = transport.known.of(write.partition_id).digests, b""
    try:
        return await transport.write(write, deadline)
    except PreconditionError as error:
        if error.reason != "DIGESTS_REQUIRED" or header.hashed:
            raise
    transport.known.learn_digests(write.partition_id)
    header.hashed = True
    return await transport.write(write, deadline)


async def _partition_of(transport: AsyncTransport, write: RowWrite, deadline: Deadline) -> pb.Partition:
    request = pb.GetPartitionRequest(partition_id=write.partition_id)
    partition: pb.Partition = (await transport.unary("GetPartition", request, deadline.left_s)).partition
    transport.known.learn(partition)
    return partition
