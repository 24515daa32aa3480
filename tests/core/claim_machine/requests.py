"""Calls that change something, as values that can be kept, sent late, and sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from dataplane_server.core.calls.messages import ClaimRequest, Commit, Definition, Put, Reserve, ShardRequest
from dataplane_server.core.plane import DataPlane


@dataclass(frozen=True)
class Register:
    request_id: str
    definition: Definition


@dataclass(frozen=True)
class Drop:
    request_id: str
    partition_id: str


@dataclass(frozen=True)
class Clear:
    """sample_ids: None for the whole partition."""

    request_id: str
    partition_id: str
    sample_ids: tuple[str, ...] | None
    generations: tuple[int, ...] | None


@dataclass(frozen=True)
class Release:
    request_id: str
    claim_id: str
    delay_s: float
    reason: str


@dataclass(frozen=True)
class Abandon:
    request_id: str
    claim_request_id: str


@dataclass(frozen=True)
class Adopt:
    request_id: str
    claim_id: str
    session_id: str


@dataclass(frozen=True)
class Reset:
    """sample_ids: None for the whole task."""

    request_id: str
    partition_id: str
    task: str
    sample_ids: tuple[str, ...] | None


@dataclass(frozen=True)
class Finish:
    request_id: str
    reservation_id: str
    weight_version: int | None


@dataclass(frozen=True)
class Abort:
    request_id: str
    reservation_id: str
    reason: str


Request = (
    Register
    | Drop
    | Clear
    | Put
    | Commit
    | ClaimRequest
    | ShardRequest
    | Release
    | Abandon
    | Adopt
    | Reset
    | Reserve
    | Finish
    | Abort
)

VERBS: dict[type, str] = {kind: kind.__name__ for kind in get_args(Request)}
"""Which requests are of one kind for a server that is asked again."""
VERBS[ShardRequest] = VERBS[ClaimRequest]
VERBS[Abandon] = VERBS[Release]


def send(plane: DataPlane, request: Request, now: float) -> object:
    """What the plane answers. Of a write that has its room and brings bytes: its reservation."""
    if isinstance(request, Put):
        return plane.begin_put(request, now)
    if isinstance(request, Commit):
        return plane.begin_commit(request, now)
    if isinstance(request, ClaimRequest):
        return plane.claim(request, now)
    if isinstance(request, ShardRequest):
        return plane.claim_shard(request, now)
    if isinstance(request, Reserve):
        return plane.reserve_group(request, now)
    return _send_by_parts(plane, request, now)


def _send_by_parts(plane: DataPlane, request: Request, now: float) -> object:
    match request:
        case Register(request_id, definition):
            return plane.register_partition(request_id, definition, now)
        case Drop(request_id, partition_id):
            return plane.drop_partition(request_id, partition_id, now)
        case Clear(request_id, partition_id, ids, generations):
            births = None if generations is None else np.array(generations, np.int64)
            return plane.clear_samples(request_id, partition_id, ids, now, births)
        case Release(request_id, claim_id, delay_s, reason):
            return plane.release_claim(request_id, claim_id, now, delay_s=delay_s, reason=reason)
        case Abandon(request_id, claim_request_id):
            return plane.abandon_request(request_id, claim_request_id, now)
        case Adopt(request_id, claim_id, session_id):
            plane.adopt_claim(request_id, claim_id, session_id, now)
            return None
        case Reset(request_id, partition_id, task, ids):
            return plane.reset_task(request_id, partition_id, task, ids, now)
        case Finish(request_id, reservation_id, weight_version):
            return plane.finish_group(request_id, reservation_id, weight_version, now)
        case Abort(request_id, reservation_id, reason):
            return plane.abort_group(request_id, reservation_id, reason, now)
    raise AssertionError(request)
