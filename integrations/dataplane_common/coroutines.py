"""Blocking verbs as coroutines, for any event loop.

A thread does not end when the coroutine that awaits it is cancelled. So what a verb takes in one step for a coroutine
is claimed first and committed once it is known that somebody still waits for it: rows that come later stay untaken.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dataplane_client.errors import ClaimTimeoutError, DeadlineError, UnavailableError
from dataplane_client.records.meta import KVBatchMeta

if TYPE_CHECKING:
    from dataplane_client.client import Claim, DataPlaneClient  # which imports torch and gRPC

P = ParamSpec("P")
T = TypeVar("T")

_AGAIN_S = 0.2
_MOST_THREADS = 1024
_cancelled: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("cancelled", default=None)
"""Whether the coroutine that awaits this thread's verb was cancelled; None if there is none."""


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads that begin as they are needed. All those of a loop's own executor may wait for a call that needs one."""
    return ThreadPoolExecutor(_MOST_THREADS, "dataplane-verb")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


def in_thread(verb: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The verb as a coroutine that runs it in a thread, so it is bound to no event loop."""

    @functools.wraps(verb)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        cancelled, context = threading.Event(), contextvars.copy_context()
        context.run(_cancelled.set, cancelled)
        work = functools.partial(context.run, verb, *args, **kwargs)
        try:
            return await asyncio.wrap_future(_threads().submit(work))
        except asyncio.CancelledError:
            cancelled.set()
            raise

    return call


def claim_meta(
    client: DataPlaneClient,
    partition_id: str,
    task_name: str,
    required_fields: Sequence[str],
    batch_size: int,
    *,
    min_size: int | None = None,
    timeout_s: float,
    away_s: float = 0.0,
) -> KVBatchMeta:
    """Take rows for a task and consume them, as the client's `claim_meta`; at least min_size (None: batch_size). Where
    the coroutine of the verb was cancelled meanwhile, they return to the task. away_s: for how long a claim with a
    min_size is repeated while the server does not answer, if that is longer than timeout_s.
    """
    cancelled = _cancelled.get()
    if cancelled is None and min_size is None:
        return client.claim_meta(partition_id, task_name, required_fields, batch_size, timeout_s=timeout_s)
    place = (partition_id, task_name, required_fields, batch_size)
    until = time.monotonic() + away_s
    claim: Claim | None = None
    while claim is None:
        try:
            claim = client.claim(*place, min_size=min_size, timeout_s=timeout_s)
        except ClaimTimeoutError:  # noqa: PERF203  # between the tries it sleeps
            raise
        except (DeadlineError, UnavailableError):
            if time.monotonic() >= until or (cancelled is not None and cancelled.is_set()):
                raise
            time.sleep(_AGAIN_S)
    with claim:
        if cancelled is not None and cancelled.is_set():
            claim.release()
    return claim.meta
