"""verl V1's replay buffers, waiting at the server instead of listing all keys every two seconds.

    trainer.v1.sampler.custom_sampler.path=pkg://dataplane_transfer_queue.verl
    trainer.v1.sampler.custom_sampler.name=DataPlaneReplayBuffer          # trainer_mode sync
    trainer.v1.sampler.custom_sampler.name=DataPlaneReplayBufferAsync     # the other modes

They are verl's classes: what is dropped, refilled, filtered, sampled and removed is decided by verl's code. Only the
wait between two listings is ours. A prompt is a row with the tag `is_prompt`, and its tag `status` says when all its
sessions have ended. A claim for one such prompt more than the last listing had waits in the server, takes nothing, and
is released at once. This module needs verl.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from dataplane_client.errors import DeadlineError, UnavailableError
from dataplane_transfer_queue._connection import attached
from dataplane_transfer_queue._rows import TASK

__all__ = ["DataPlaneReplayBuffer", "DataPlaneReplayBufferAsync"]

_ENDED = "is_prompt == True and status in ('finished', 'failure')"
_FILTERS = (
    "filter_groups_metric",
    "sync_refill_failed_groups",
    "train_batch_size",
    "gen_batch_size",
    "max_inflight_gen_batches",
)
"""What verl's trainer gives to its own buffer and not to a custom one."""


class _Waiting:
    """The part of both that is not verl's. wait_s: the longest wait before a listing, where no prompt ends.

    poll_interval: what verl sleeps after it; here the least time between listings, where many prompts end at once.
    """

    wait_s: ClassVar[float] = 10.0
    modes_of: ClassVar[str]

    def __init__(
        self, trainer_mode: str, *args: Any, sampler_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if (trainer_mode == "sync") != (self.modes_of == "sync"):
            raise ValueError(
                f"{type(self).__name__} is for trainer_mode {self.modes_of}, not {trainer_mode!r}: set "
                "trainer.v1.sampler.custom_sampler.name to the other class of this module"
            )
        given = dict(sampler_kwargs or {})
        filters = {name: given[name] for name in _FILTERS if name in given}
        super().__init__(  # type: ignore[call-arg]  # verl's class, which comes next
            trainer_mode, *args, sampler_kwargs=sampler_kwargs, **{"poll_interval": 0.1, **filters, **kwargs}
        )

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """Block until one prompt more has ended than in the last listing, at most wait_s seconds."""
        buffer: Any = self
        ended = len(buffer.finished_keys[partition_id]) + len(buffer.failure_keys[partition_id])
        rows = attached().rows
        rows.ensure_task(partition_id, TASK)
        with contextlib.suppress(DeadlineError, UnavailableError):  # the listing waits longer for a server that is away
            rows.client.claim(partition_id, TASK, [], ended + 1, where=_ENDED, timeout_s=self.wait_s).release()
        debugged: float = super()._wait_for_next_poll(partition_id, last_debug_time)  # type: ignore[misc]
        return debugged


class DataPlaneReplayBuffer(_Waiting, ReplayBuffer):  # type: ignore[misc]  # verl has no type information
    """verl's `ReplayBuffer`, of synchronous training. Takes what that class takes.

    verl gives its filters to no custom sampler. Those of `sampler_kwargs` are used instead: filter_groups_metric,
    sync_refill_failed_groups, train_batch_size, gen_batch_size and max_inflight_gen_batches, as verl's class has them.
    Raises ValueError for another trainer_mode.
    """

    modes_of = "sync"


class DataPlaneReplayBufferAsync(_Waiting, ReplayBufferAsync):  # type: ignore[misc]  # verl has no type information
    """verl's `ReplayBufferAsync`, of the other modes. sampler_kwargs, errors: as for `DataPlaneReplayBuffer`."""

    modes_of = "other than sync"
