"""Requests of claims, shards, releases, resets and groups, made from what callers pass. See `_requests.requests`."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import randbits
from typing import Any, Literal, get_args

from dataplane_client._common.arguments import (
    checked_choice,
    checked_count,
    checked_flag,
    checked_name,
    checked_names,
    checked_number,
    checked_seconds,
    optional_count,
)
from dataplane_client._requests.requests import new_request_id
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records.filters import Where, filter_message
from dataplane_client.records.tasks import BatchUnit, Selection, order_number
from rl_dataplane.v1 import data_plane_pb2 as pb

Balance = Literal["rows", "tokens", "groups"]
"""What the data-parallel ranks of a step get about equally much of."""

DrawStrategy = Literal["uniform", "prioritized", "fifo", "lifo"]
"""How rows are drawn."""

ANY = Selection()
_BALANCES = {"rows": pb.SHARD_BALANCE_ROWS, "tokens": pb.SHARD_BALANCE_TOKENS, "groups": pb.SHARD_BALANCE_GROUPS}
_UNITS = {None: pb.BATCH_UNIT_UNSPECIFIED, "rows": pb.BATCH_UNIT_ROWS, "groups": pb.BATCH_UNIT_GROUPS}

_UINT32 = (1 << 32) - 1
_MOST_ROWS = 65_536  # of one call, as the server
_INT64 = (1 << 63) - 1


def claim_request(
    partition_id: str,
    task_name: str,
    required_fields: Sequence[str],
    batch_size: int,
    *,
    mode: pb.ClaimMode.ValueType,
    min_size: int | None = None,
    whole_groups: bool = False,
    max_tokens: int | None = None,
    unit: BatchUnit | None = None,
    selection: Selection = ANY,
) -> pb.ClaimSamplesRequest:
    """A claim without a request_id: each attempt gets one of its own."""
    where = f"claim from {partition_id!r}"
    rows = _rows(partition_id, required_fields, batch_size, min_size, where)
    return pb.ClaimSamplesRequest(
        **rows, **_grant(task_name, whole_groups, max_tokens, unit, selection, where), mode=mode
    )


def shard_request(
    partition_id: str,
    task_name: str,
    required_fields: Sequence[str],
    batch_size: int,
    *,
    step: int,
    dp_rank: int,
    dp_world: int,
    min_size: int | None,
    balance: Balance,
    max_tokens: int | None,
    whole_groups: bool,
    unit: BatchUnit | None,
    selection: Selection,
    again: bool,
) -> pb.ClaimShardRequest:
    where = f"claim_shard from {partition_id!r}"
    if checked_choice("balance", balance, Balance, where) == "groups" and not whole_groups:
        raise InvalidArgumentError(f"{where}: balance 'groups' needs whole_groups=True")
    world = checked_count("dp_world", dp_world, where, least=1, most=_UINT32)
    return pb.ClaimShardRequest(
        **_rows(partition_id, required_fields, batch_size, min_size, where),
        **_grant(task_name, whole_groups, max_tokens, unit, selection, where),
        step=checked_count("step", step, where, least=0, most=(1 << 64) - 1),
        dp_rank=checked_count("dp_rank", dp_rank, where, least=0, most=world - 1),
        dp_world=world,
        balance=_BALANCES[balance],
        again=checked_flag("again", again, where),
    )


def draw_request(
    partition_id: str,
    required_fields: Sequence[str],
    batch_size: int,
    *,
    min_size: int | None,
    task_name: str | None,
    strategy: DrawStrategy,
    priority_tag: str,
    priority_exponent: float,
    where: Where | None,
    max_times_sampled: int | None,
    seed: int | None,
) -> pb.DrawSamplesRequest:
    call = f"draw_samples from {partition_id!r}"
    checked_choice("strategy", strategy, DrawStrategy, call)
    return pb.DrawSamplesRequest(
        **_rows(partition_id, required_fields, batch_size, min_size, call),
        request_id=new_request_id(),
        task=checked_name("task name", task_name or "", call),
        strategy=pb.DrawStrategy.Value(f"DRAW_STRATEGY_{strategy.upper()}"),
        priority_tag=checked_name("priority_tag", priority_tag, call),
        priority_exponent=checked_number("priority_exponent", priority_exponent, call),
        where=filter_message(where, call),
        max_times_sampled=optional_count("max_times_sampled", max_times_sampled, call, least=1, most=_UINT32) or 0,
        seed=randbits(64) if seed is None else checked_count("seed", seed, call, least=0, most=(1 << 64) - 1),
    )


def _rows(
    partition_id: str, required_fields: Sequence[str], batch_size: int, min_size: int | None, where: str
) -> dict[str, Any]:
    """What claims, shards and draws say of their rows."""
    return {
        "partition_id": checked_name("partition id", partition_id, where),
        "required_fields": checked_names("field name", required_fields, where),
        "batch_size": checked_count("batch_size", batch_size, where, least=1, most=_MOST_ROWS),
        "min_size": optional_count("min_size", min_size, where, least=1, most=batch_size),
    }


def _grant(
    task_name: str, whole_groups: bool, max_tokens: int | None, unit: BatchUnit | None, selection: Selection, where: str
) -> dict[str, Any]:
    """What claims and shards say beside that."""
    return {
        "task": checked_name("task name", task_name, where),
        "whole_groups": checked_flag("whole_groups", whole_groups, where),
        "max_tokens": optional_count("max_tokens", max_tokens, where, least=1, most=_INT64) or 0,
        "unit": _unit(unit, whole_groups, where),
        "where": filter_message(selection.where, where),
        "order": order_number(selection.order, where),
        "order_tag": checked_name("order_tag", selection.order_tag, where),
    }


def _unit(unit: BatchUnit | None, whole_groups: bool, where: str) -> pb.BatchUnit.ValueType:
    if unit not in _UNITS:
        raise InvalidArgumentError(f"{where}: unit must be one of {get_args(BatchUnit)} or None, got {unit!r}")
    if unit is not None and not whole_groups:
        raise InvalidArgumentError(f"{where}: unit {unit!r} needs whole_groups=True")
    return _UNITS[unit]


def release_request(claim_id: str, delay_s: float, reason: str) -> pb.ReleaseClaimRequest:
    where = f"release of claim {claim_id}"
    delay_ns = checked_seconds("delay_s", delay_s, where)
    request = pb.ReleaseClaimRequest(
        request_id=new_request_id(), claim_id=claim_id, reason=checked_name("reason", reason, where)
    )
    if delay_ns:
        request.delay.FromNanoseconds(delay_ns)
    return request


def reset_request(partition_id: str, task_name: str, sample_ids: Sequence[str] | None) -> pb.ResetTaskRequest:
    where = f"reset of {task_name!r} in {partition_id!r}"
    return pb.ResetTaskRequest(
        request_id=new_request_id(),
        partition_id=checked_name("partition id", partition_id, where),
        task=checked_name("task name", task_name, where),
        sample_ids=() if sample_ids is None else checked_names("sample id", sample_ids, where),
        whole_task=sample_ids is None,
    )


def reserve_request(
    partition_id: str,
    group_id: str,
    sample_ids: Sequence[str],
    weight_version: int | None,
    *,
    deadline_s: float | None = None,
    min_rows: int | None = None,
    complete_fields: Sequence[str] = (),
    max_regenerations: int | None = None,
) -> pb.ReserveGroupRequest:
    where = f"reserve_group {group_id!r} in {partition_id!r}"
    request = pb.ReserveGroupRequest(
        partition_id=checked_name("partition id", partition_id, where),
        group_id=checked_name("group id", group_id, where),
        sample_ids=checked_names("sample id", sample_ids, where),
        weight_version=checked_version(weight_version, where),
        min_rows=optional_count("min_rows", min_rows, where, least=1, most=_MOST_ROWS) or 0,
        complete_fields=checked_names("field name", complete_fields, where),
        max_regenerations=optional_count("max_regenerations", max_regenerations, where, least=0, most=_UINT32),
    )
    if deadline_s is not None:
        deadline_ns = checked_seconds("deadline_s", deadline_s, where)
        if not deadline_ns:
            raise InvalidArgumentError(f"{where}: deadline_s must be positive, got {deadline_s}")
        request.deadline.FromNanoseconds(deadline_ns)
    return request


def checked_version(weight_version: int | None, where: str) -> int | None:
    return optional_count("weight_version", weight_version, where, least=0, most=(1 << 31) - 2)
