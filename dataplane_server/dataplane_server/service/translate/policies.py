"""Messages to calls of the core, and answers to messages: weight versions, and the policies of tasks and partitions."""

from __future__ import annotations

from typing import TypeVar

from dataplane_server.core.calls.flow import DrawBand, EvictFirst, FlowPolicy, WhenFull
from dataplane_server.core.calls.policies import ClaimOrder, TaskPolicy, TaskPolicyOf, WhenExcluded, WhenStale
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import SetPolicies, SetWeightVersion
from dataplane_server.service.translate.filters import filter_message, rows_that_fit
from rl_dataplane.v1 import data_plane_pb2 as pb

_ORDER: dict[int, ClaimOrder | None] = {
    pb.CLAIM_ORDER_UNSPECIFIED: None,
    pb.CLAIM_ORDER_READY: "ready",
    pb.CLAIM_ORDER_OLDEST_VERSION: "oldest_version",
    pb.CLAIM_ORDER_NEWEST_VERSION: "newest_version",
    pb.CLAIM_ORDER_LOWEST_TAG: "lowest_tag",
    pb.CLAIM_ORDER_HIGHEST_TAG: "highest_tag",
}
_ORDER_NUMBERS = {order: pb.ClaimOrder.ValueType(number) for number, order in _ORDER.items()}
_STALE: dict[int, WhenStale] = {
    pb.WHEN_STALE_UNSPECIFIED: "withhold",
    pb.WHEN_STALE_WITHHOLD: "withhold",
    pb.WHEN_STALE_DROP: "drop",
    pb.WHEN_STALE_DELIVER: "deliver",
}
_STALE_NUMBERS = {what: pb.WhenStale.ValueType(number) for number, what in _STALE.items()}
_EXCLUDED: dict[int, WhenExcluded] = {
    pb.WHEN_EXCLUDED_UNSPECIFIED: "withhold",
    pb.WHEN_EXCLUDED_WITHHOLD: "withhold",
    pb.WHEN_EXCLUDED_DROP: "drop",
}
_EXCLUDED_NUMBERS = {what: pb.WhenExcluded.ValueType(number) for number, what in _EXCLUDED.items()}
_FULL: dict[int, WhenFull] = {
    pb.WHEN_FULL_UNSPECIFIED: "block",
    pb.WHEN_FULL_BLOCK: "block",
    pb.WHEN_FULL_REJECT: "reject",
    pb.WHEN_FULL_EVICT: "evict",
}
_FULL_NUMBERS = {what: pb.WhenFull.ValueType(number) for number, what in _FULL.items()}
_FIRST: dict[int, EvictFirst] = {
    pb.EVICT_FIRST_UNSPECIFIED: "oldest",
    pb.EVICT_FIRST_OLDEST: "oldest",
    pb.EVICT_FIRST_OLDEST_VERSION: "oldest_version",
}
_FIRST_NUMBERS = {what: pb.EvictFirst.ValueType(number) for number, what in _FIRST.items()}

T = TypeVar("T")


def _known(table: dict[int, T], number: int, what: str) -> T:
    if number not in table:
        raise Refusal(Reason.INVALID_REQUEST, f"unknown {what}: {number}")
    return table[number]


def order(number: int) -> ClaimOrder | None:
    return _known(_ORDER, number, "claim order")


def set_version(request: pb.SetWeightVersionRequest) -> SetWeightVersion:
    oldest = request.retire_below if request.HasField("retire_below") else None
    return SetWeightVersion(request.request_id, request.partition_id, request.version, oldest)


def set_policies(request: pb.SetPoliciesRequest) -> SetPolicies:
    policies = [TaskPolicyOf(task, _policy(message)) for task, message in sorted(request.tasks.items())]
    flow = _flow(request.flow) if request.HasField("flow") else None
    return SetPolicies(request.request_id, request.partition_id, tuple(policies), flow)


def _policy(message: pb.TaskPolicy) -> TaskPolicy:
    return TaskPolicy(
        max_staleness=message.max_staleness if message.HasField("max_staleness") else None,
        when_stale=_known(_STALE, message.when_stale, "policy for stale rows"),
        order=order(message.order) or "ready",
        order_tag=message.order_tag,
        rows_per_version=message.rows_per_version,
        where=rows_that_fit(message.where),
        when_excluded=_known(_EXCLUDED, message.when_excluded, "policy for excluded rows"),
    )


def policy_message(policy: TaskPolicy) -> pb.TaskPolicy:
    return pb.TaskPolicy(
        max_staleness=policy.max_staleness,
        when_stale=_STALE_NUMBERS[policy.when_stale],
        order=_ORDER_NUMBERS[policy.order],
        order_tag=policy.order_tag,
        rows_per_version=policy.rows_per_version,
        where=filter_message(policy.where),
        when_excluded=_EXCLUDED_NUMBERS[policy.when_excluded],
    )


def _flow(message: pb.FlowPolicy) -> FlowPolicy:
    band = message.band
    return FlowPolicy(
        max_rows=message.max_rows if message.HasField("max_rows") else None,
        max_bytes=message.max_bytes if message.HasField("max_bytes") else None,
        max_versions=message.max_versions if message.HasField("max_versions") else None,
        when_full=_known(_FULL, message.when_full, "when_full"),
        evict_first=_known(_FIRST, message.evict_first, "evict_first"),
        evict_where=rows_that_fit(message.evict_where),
        band=DrawBand(band.samples_per_insert, band.least, band.most) if message.HasField("band") else None,
    )


def flow_message(policy: FlowPolicy) -> pb.FlowPolicy:
    band = policy.band
    return pb.FlowPolicy(
        max_rows=policy.max_rows,
        max_bytes=policy.max_bytes,
        max_versions=policy.max_versions,
        when_full=_FULL_NUMBERS[policy.when_full],
        evict_first=_FIRST_NUMBERS[policy.evict_first],
        evict_where=filter_message(policy.evict_where) if policy.evict_where else None,
        band=pb.DrawBand(samples_per_insert=band.samples_per_insert, least=band.least, most=band.most)
        if band
        else None,
    )
