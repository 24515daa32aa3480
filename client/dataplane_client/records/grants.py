"""What a claim grants, and what a draw finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dataplane_client._common.arrays import generations_of, int64s
from dataplane_client.records.mapping import compiled_later, mapper, unpacked_tags
from dataplane_client.records.meta import KVBatchMeta
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
    """Claimed rows. deliveries: how often each was delivered to the task, this time included. staleness: in versions,
    -1 if unknown. committed: of a shard, whether it was committed before.
    """

    claim_id: str
    meta: KVBatchMeta
    deliveries: list[int]
    groups: tuple[ClaimedGroup, ...] = ()
    staleness: list[int] = field(default_factory=list)
    committed: bool = False


@dataclass(frozen=True)
class SampledRows:
    """Rows that `draw_samples` drew, in the order in which they were drawn. No claim holds them: read them with
    `get_data` or `read_columns`, which refuse a row that was cleared since.

    draws: how often each row has been drawn, this time included. probabilities: how probable it was that each row is
    the first to be drawn, for importance weights; 1 for "fifo" and "lifo". staleness: how many versions each row was
    behind the partition's weight version, -1 if unknown.
    """

    meta: KVBatchMeta
    draws: list[int]
    probabilities: list[float]
    staleness: list[int]


def decode_drawn(response: pb.DrawSamplesResponse, request: pb.DrawSamplesRequest) -> SampledRows:
    return SampledRows(
        _meta(response, request, {}),
        int64s(response.draws).tolist(),
        np.frombuffer(response.probabilities, "<f8").tolist(),
        int64s(response.staleness).tolist(),
    )


def decode_grant(
    response: pb.ClaimSamplesResponse,
    request: pb.ClaimSamplesRequest | pb.ClaimShardRequest,
    extra_info: dict[str, object],
) -> Grant:
    meta = _meta(response, request, extra_info)
    groups = tuple(map(_group, response.groups))
    of_rows = (int64s(response.deliveries).tolist(), groups, int64s(response.staleness).tolist())
    return Grant(response.claim_id, meta, *of_rows, response.committed)


def _meta(
    response: pb.ClaimSamplesResponse | pb.DrawSamplesResponse,
    request: pb.ClaimSamplesRequest | pb.ClaimShardRequest | pb.DrawSamplesRequest,
    extra_info: dict[str, object],
) -> KVBatchMeta:
    lengths = int64s(response.sequence_lengths).tolist()
    return KVBatchMeta(
        partition_id=request.partition_id,
        task_name=request.task or None,
        sample_ids=list(response.sample_ids),
        fields=list(request.required_fields),
        sequence_lengths=lengths if all(length >= 0 for length in lengths) else None,
        extra_info=extra_info,
        tags=[*map(unpacked_tags, response.row_tags)],
        generations=generations_of(response.generations, len(response.sample_ids)),
    )


@compiled_later
def _group() -> Callable[[pb.ClaimedGroup], ClaimedGroup]:
    return mapper().reader(ClaimedGroup, pb.ClaimedGroup)
