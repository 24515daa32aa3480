"""Messages to calls of the core, and answers to messages: weight versions and policies."""

from __future__ import annotations

from dataplane_server.core.calls.policies import ClaimOrder, TaskPolicy, TaskPolicyOf, WhenExcluded, WhenStale
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import SetPolicies, SetWeightVersion
from dataplane_server.service.translate_filters import filter_message, rows_that_fit
from dataplane_server.service.translate_flow import flow
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


def order(number: int) -> ClaimOrder | None:
    if number not in _ORDER:
        raise Refusal(Reason.INVALID_REQUEST, f"unknown claim order: {number}")
    return _ORDER[number]


def set_version(request: pb.SetWeightVersionRequest) -> SetWeightVersion:
    oldest = request.retire_below if request.HasField("retire_below") else None
    return SetWeightVersion(request.request_id, request.partition_id, request.version, oldest)


def set_policies(request: pb.SetPoliciesRequest) -> SetPolicies:
    policies = [TaskPolicyOf(task, _policy(message)) for task, message in sorted(request.tasks.items())]
    new_flow = flow(request.flow) if request.HasField("flow") else None
    return SetPolicies(request.request_id, request.partition_id, tuple(policies), new_flow)


def _policy(message: pb.TaskPolicy) -> TaskPolicy:
    if message.when_stale not in _STALE:
        raise Refusal(Reason.INVALID_REQUEST, f"unknown policy for stale rows: {message.when_stale}")
    if message.when_excluded not in _EXCLUDED:
        raise Refusal(Reason.INVALID_REQUEST, f"unknown policy for excluded rows: {message.when_excluded}")
    return TaskPolicy(
        max_staleness=message.max_staleness if message.HasField("max_staleness") else None,
        when_stale=_STALE[message.when_stale],
        order=order(message.order) or "ready",
        order_tag=message.order_tag,
        rows_per_version=message.rows_per_version,
        where=rows_that_fit(message.where),
        when_excluded=_EXCLUDED[message.when_excluded],
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
