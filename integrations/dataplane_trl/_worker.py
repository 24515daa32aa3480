"""TRL's rollout worker: the queue, the methods and the callback by which its asynchronous trainer uses the data plane.

The callback tells the worker what the trainer did. Transformers calls `on_substep_end` after each micro-batch that is
followed by another one of its step, and `on_step_end` after the optimizer's step and before the step is saved.

TRL counts the versions of the weights from 1 in each life of a trainer that has another worker than its own. The server
and the producers see one count for the whole run: the worker adds the versions that there were before the checkpoint.
"""

from __future__ import annotations

import queue
import time
from functools import cached_property
from typing import Any, Literal, get_args

from dataplane_client.client import connect
from dataplane_client.errors import DeadlineError, InvalidArgumentError, OutOfSpaceError, UnavailableError
from dataplane_client.records.tasks import TaskPolicy
from dataplane_trl._feed import Feed
from dataplane_trl._rollouts import RolloutSample, Sample, put_rollouts, register_rollouts

CommitOn = Literal["save", "step"]

_LONGEST_WAIT_S = 60.0


class DataPlaneRolloutWorker:
    """A `rollout_worker` for AsyncGRPOTrainer, which needs the worker's callback, too.

        worker = DataPlaneRolloutWorker(max_staleness=args.max_staleness)
        trainer = AsyncGRPOTrainer(..., rollout_worker=worker, callbacks=[worker.callback])

    Every rank makes one; that of the first connects when training begins. address: of the server; None for the
    environment variable DATAPLANE_SERVER. connection: further arguments of `connect`. partition, task: of one run.

    max_staleness: how many versions a sample may be behind; the server then drops staler ones, with the others of their
    prompt, instead of delivering them, and warns producers early. None leaves the policy of the task as it is. TRL
    drops what turned stale after it was claimed.

    commit_on: when a sample of which an optimizer step is over is given up for good.

    - "save": when the trainer has saved. A trainer that is killed at any moment and resumes from its last complete
      checkpoint trains on every sample exactly once: on those of steps that the checkpoint has, not again; on all
      others, those of lost steps included. The server's memory must hold the samples between two saves, and a resume
      from an older checkpoint does not get those back that a later one has. Without saves (`save_strategy="no"`), as
      "step".
    - "step": at once. Least memory; after a resume, the samples of steps after the checkpoint are missing.

    A run without a checkpoint begins again with all samples that are there. TRL counts the epochs of a resumed run from
    0 with any worker but its own: give it max_steps.

    claim_rows: how many samples are claimed and read at once.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        partition: str = "rollouts",
        task: str = "train",
        max_staleness: int | None = None,
        commit_on: CommitOn = "save",
        claim_rows: int = 64,
        **connection: Any,
    ) -> None:
        self._address, self._connection = address, connection
        self.partition, self._task, self._claim_rows = partition, task, claim_rows
        self._max_staleness = max_staleness
        if commit_on not in get_args(CommitOn):
            raise InvalidArgumentError(f"commit_on must be one of {get_args(CommitOn)}, got {commit_on!r}")
        self._commit_on = commit_on
        self._version = 0  # as the trainer counts
        self._feed: Feed | None = None
        self.why_empty = ""
        self.rollout_buffer = RolloutBuffer(self)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        """Each step: seconds that the trainer waited for samples, and that reading and marking them took."""

    @cached_property
    def callback(self) -> Any:
        """The TrainerCallback that tells this worker what the trainer did. Needs transformers."""
        from transformers import TrainerCallback

        return type("DataPlaneCallback", (_Callback, TrainerCallback), {})(self)

    # -- what TRL calls ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """TRL calls this when training begins. Raises RuntimeError if the trainer has not got the callback."""
        _ = self.feed

    def stop(self) -> None:
        """Release what the trainer is not done with, and disconnect. May be called again. Takes seconds at most."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def update_model_version(self, model_version: int) -> None:
        """These are the weights from now on: staleness is measured against them. Blocks for one call."""
        self._version = model_version
        if self._feed is not None:
            self._feed.client.set_weight_version(self.partition, self._feed.base + model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise RuntimeError if no sample has come for stale_after_s seconds and no group is reserved in the partition:
        if there is no sign of a producer. Raises UnavailableError if the server cannot be reached.
        """
        silent_s = time.monotonic() - self.feed.heard_at
        if silent_s <= stale_after_s:
            return
        partition = self.feed.client.partition(self.partition)
        if not partition.open_groups:
            raise RuntimeError(
                f"for {silent_s:.0f} s no rollout has come to partition {self.partition!r}, and no producer has "
                f"reserved a group there ({partition.removed_rows.get('stale', 0)} rows were dropped as too stale): "
                f"{self.why_empty}"
            )

    # -- what the callback calls ---------------------------------------------------------------------------------------

    def begin(self, step: int, syncs: int, loader: Any, saves: bool) -> None:
        """Training begins after this step. syncs: how often the weights had been sent by then. loader: its collator is
        watched. saves: whether the trainer will save.
        """
        self.stop()
        client = connect(self._address, **self._connection)
        keeps = saves and self._commit_on == "save"
        names = (self.partition, self._task)
        feed = self._feed = Feed(client, *names, base=syncs, claim_rows=self._claim_rows, keeps=keeps)
        register_rollouts(client, self.partition, self._task)
        client.set_weight_version(self.partition, syncs + self._version)
        if self._max_staleness is not None:
            policy = TaskPolicy(max_staleness=self._max_staleness, when_stale="drop")
            client.set_policies(self.partition, {self._task: policy})
        feed.progress.rewind(step)
        _watch(loader, feed)

    @property
    def feed(self) -> Feed:
        if self._feed is None:
            raise RuntimeError("training has not begun, or the trainer was made without callbacks=[worker.callback]")
        return self._feed


def _watch(loader: Any, feed: Feed) -> None:
    """Tell the feed of each micro-batch that TRL's collator gets. The loader is torch's, or accelerate's around it."""
    loader = getattr(loader, "base_dataloader", loader)
    collate = loader.collate_fn

    def watched(examples: Any) -> Any:
        (micro_batch,) = examples
        feed.collated(micro_batch)
        return collate(examples)

    loader.collate_fn = watched


class RolloutBuffer:
    """The worker's samples as the `queue.Queue` that TRL drains. For one thread."""

    def __init__(self, worker: DataPlaneRolloutWorker) -> None:
        self._worker = worker

    def get(self, block: bool = True, timeout: float | None = None) -> RolloutSample:
        """The next sample. Raises queue.Empty if none comes in timeout seconds (None: a minute), also if the server is
        away, and EndOfDataError if the partition is closed and no sample is left.
        """
        try:
            return self._worker.feed.next((_LONGEST_WAIT_S if timeout is None else timeout) if block else 0.0)
        except (DeadlineError, UnavailableError) as error:  # check_health reports a server that stays away
            self._worker.why_empty = str(error)
            raise queue.Empty from error

    def put_nowait(self, sample: Sample) -> None:
        """Put a sample as a group. Raises queue.Full if the server has no room. Producers in other processes
        call put_rollouts.
        """
        try:
            put_rollouts(self._worker.feed.client, self._worker.partition, [sample], timeout_s=0.0)
        except OutOfSpaceError as error:
            raise queue.Full from error

    def qsize(self) -> int:
        """Samples that are claimed and not handed out, and those that were ready after the last claim."""
        return len(self._worker.feed) + self._worker.feed.waiting


class _Callback:
    """What transformers' trainer calls, on every rank."""

    def __init__(self, worker: DataPlaneRolloutWorker) -> None:
        self._worker = worker

    def on_train_begin(self, args: Any, state: Any, _control: Any, *, train_dataloader: Any, **_kwargs: Any) -> None:
        if state.is_world_process_zero:
            syncs = state.global_step // getattr(args, "weight_sync_steps", 1)
            self._worker.begin(state.global_step, syncs, train_dataloader, args.save_strategy != "no")

    def on_substep_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._worker.feed.ran()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._worker.feed.ran()
            self._worker.metrics_queue.put(self._worker.feed.stepped(state.global_step))

    def on_save(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._worker.feed.progress.forget(state.global_step)
