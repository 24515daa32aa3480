"""Waiting for the results of all ranks, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from trainer_adapter.worker_groups._failures import Failure, common_error, failed_error, late_error
from trainer_adapter.worker_groups._ray_placement import require_ray


def wait_for_results(refs: Sequence[Any], method: str, *, timeout_s: float, grace_s: float) -> list[Any]:
    """Return results by rank. Raises a rank's own exception if all ranks failed; WorkerFailed if some failed, or have
    not finished within timeout_s. After the first failure the others have grace_s to finish.
    """
    ray = require_ray()
    waiting = {ref: rank for rank, ref in enumerate(refs)}
    results: dict[int, Any] = {}
    failures: dict[int, Failure] = {}
    deadline = time.monotonic() + timeout_s
    while waiting and (left := deadline - time.monotonic()) > 0:
        for ref in ray.wait(list(waiting), num_returns=1, timeout=left)[0]:
            rank = waiting.pop(ref)
            try:
                results[rank] = ray.get(ref)
            except Exception as error:  # noqa: BLE001  # every error of a worker is reported with its rank
                deadline = min(deadline, time.monotonic() + grace_s) if not failures else deadline
                failures[rank] = _failure_of(ray, error)
    if failures:
        raise common_error(failures, len(refs)) or failed_error(method, failures, list(waiting.values()))
    if waiting:
        raise late_error(method, list(waiting.values()), timeout_s)
    return [results[rank] for rank in range(len(refs))]


def _failure_of(ray: Any, error: Exception) -> Failure:
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, Exception):
            cause.__cause__ = error  # it contains the worker's stack
            return Failure.of(cause)
    died = isinstance(error, ray.exceptions.RayActorError)
    return Failure(type(error).__qualname__, str(error), error, died)
