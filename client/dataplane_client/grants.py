"""What a claim grants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgpack

from dataplane_client._column_messages import generations_of, int64s
from dataplane_client.meta import KVBatchMeta
from rl_dataplane.v1 import data_plane_pb2 as pb


@dataclass(frozen=True)
class ClaimedGroup:
    """Rows of one prompt within a claim. The groups of a claim are in the order of its meta; this one has `rows` rows.

    group_id: empty for a row outside any group. start_weight_version, end_weight_version: of the weights with which
    generation began and ended, or None if the producer did not give them.
    """

    group_id: str
    rows: int
    start_weight_version: int | None = None
    end_weight_version: int | None = None


@dataclass(frozen=True)
class Grant:
    """Claimed rows. deliveries: how often each was delivered to the task, this time included."""

    claim_id: str
    meta: KVBatchMeta
    deliveries: list[int]
    groups: tuple[ClaimedGroup, ...] = ()


def decode_grant(
    response: pb.ClaimSamplesResponse,
    partition_id: str,
    task_name: str,
    fields: Sequence[str],
    extra_info: dict[str, object],
) -> Grant:
    lengths = int64s(response.sequence_lengths).tolist()
    meta = KVBatchMeta(
        partition_id=partition_id,
        task_name=task_name,
        sample_ids=list(response.sample_ids),
        fields=list(fields),
        sequence_lengths=lengths if all(length >= 0 for length in lengths) else None,
        extra_info=extra_info,
        tags=[msgpack.unpackb(packed) if packed else {} for packed in response.row_tags],
        generations=generations_of(response.generations, len(response.sample_ids)),
    )
    groups = tuple(_group(message) for message in response.groups)
    return Grant(response.claim_id, meta, int64s(response.deliveries).tolist(), groups)


def _group(message: pb.ClaimedGroup) -> ClaimedGroup:
    return ClaimedGroup(
        group_id=message.group_id,
        rows=message.rows,
        start_weight_version=message.start_weight_version if message.HasField("start_weight_version") else None,
        end_weight_version=message.end_weight_version if message.HasField("end_weight_version") else None,
    )
