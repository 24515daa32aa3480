"""What the trainer is handed, and what it is done with.

What it was handed is not what it has trained on: its batchers keep a sample for the next micro-batch, its data loader
fetches a micro-batch ahead, and the gradients of several micro-batches make a step. But all of them keep the order in
which samples were handed out. So the collator is watched for the last sample of each micro-batch, and when the trainer
has run a micro-batch, it is done with all samples up to that one: it has trained on them or, if they were stale or too
long, dropped them. At the end of the step these rows are marked (see `dataplane_common.progress`), and a claim is
committed when the trainer is done with its last row.

If the session expires, its rows come again under another claim. Those that the trainer still has are not handed out
twice, and those that it is done with are marked, which no claim of the feed gets.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.errors import ClaimNotFoundError, DataPlaneError, NotFoundError
from dataplane_common.progress import UNTRAINED, Progress
from dataplane_trl._rollouts import FIELDS, RolloutSample, read_rollouts


class Placed(dict[str, float]):
    """The metrics of a sample, and its place among those that were handed out. TRL passes them to its collator as they
    are.
    """

    def __init__(self, metrics: dict[str, float], place: int) -> None:
        super().__init__(metrics)
        self.place = place


@dataclass(eq=False)
class _Holding:
    """A claim, and how many of its rows the trainer is not done with."""

    claim: Claim
    left: int


@dataclass(eq=False)
class _Row:
    sample_id: str
    generation: int
    holding: _Holding


class Feed:
    """The rows of one task for one trainer. For one thread.

    base: the version of the weights that the trainer calls 0. claim_rows: how many rows are claimed at once. keeps:
    whether rows stay until the trainer saves; otherwise they are removed at the end of their step. waiting: rows that
    were ready after the last claim. heard_at: when rows came last, or when the feed began (time.monotonic).
    """

    def __init__(
        self, client: DataPlaneClient, partition: str, task: str, *, base: int, claim_rows: int, keeps: bool
    ) -> None:
        self.progress = Progress(client, partition, task)
        self.base = base
        self.waiting = 0
        self.heard_at = time.monotonic()
        self.client, self._partition, self._task = client, partition, task
        self._claim_rows, self._keeps = claim_rows, keeps
        self._ready: deque[tuple[RolloutSample, _Row]] = deque()
        self._held: dict[int, _Row] = {}  # by generation: claimed, and the trainer is not done with them
        self._handed: dict[int, _Row] = {}  # by place, in their order
        self._places = count()
        self._collated: deque[int] = deque()  # the last place of each micro-batch that was not run yet
        self._done: list[_Row] = []
        self._seconds = {"waiting": 0.0, "working": 0.0}

    def __len__(self) -> int:
        """Samples that were claimed and not handed out."""
        return len(self._ready)

    def next(self, timeout_s: float) -> RolloutSample:
        """Hand out a sample. Raises ClaimTimeoutError if none comes in time, EndOfDataError if the partition is closed
        and empty.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ready:
            self._claim(max(0.0, deadline - time.monotonic()))
        sample, row = self._ready.popleft()
        place = next(self._places)
        self._handed[place] = row
        return replace(sample, metrics=Placed(sample.metrics, place))

    def _claim(self, timeout_s: float) -> None:
        with self._timed("waiting"):
            claim = self.client.claim(
                self._partition,
                self._task,
                FIELDS,
                self._claim_rows,
                min_size=1,
                whole_groups=True,
                unit="rows",
                where=UNTRAINED,
                timeout_s=timeout_s,
            )
        with self._timed("working"):
            self._read(claim)

    def _read(self, claim: Claim) -> None:
        try:
            samples = read_rollouts(self.client, claim.meta, self.base)
        except NotFoundError:  # a row was cleared meanwhile
            claim.release()
            return
        holding, formers = _Holding(claim, claim.meta.size), list[_Holding]()
        rows = zip(claim.meta.sample_ids, claim.meta.generations or (), samples, strict=True)
        for sample_id, generation, sample in rows:
            row = self._held.get(generation)
            if row is None:
                row = self._held[generation] = _Row(sample_id, generation, holding)
                self._ready.append((sample, row))
            else:
                formers.append(row.holding)
                row.holding = holding
        self.heard_at = time.monotonic()
        for former in formers:  # once all rows are noted, since a commit may find the server away
            _leave(former)
        tasks = self.client.partition(self._partition).tasks
        self.waiting = next(task.ready_rows or 0 for task in tasks if task.task == self._task)

    # -- what the trainer did ------------------------------------------------------------------------------------------

    def collated(self, micro_batch: Any) -> None:
        """The collator got this micro-batch: for each rank a row of samples."""
        self._collated.append(max(sample["metrics"].place for row in micro_batch for sample in row.samples))

    def ran(self) -> None:
        """The trainer ran a micro-batch forward and backward."""
        last = self._collated.popleft()
        while self._handed and (place := next(iter(self._handed))) <= last:
            self._done.append(self._handed.pop(place))

    def stepped(self, step: int) -> dict[str, float]:
        """The optimizer's step of this number is over. Returns for how many seconds the trainer has waited for rows and
        has had rows read and marked since the last one.
        """
        with self._timed("working"):
            rows = {row.sample_id: row.generation for row in self._done}
            if self._keeps:
                self.progress.mark(rows, step)
            else:
                self.client.clear_samples(list(rows), self._partition, generations=list(rows.values()))
            for row in self._done:
                del self._held[row.generation]
                _leave(row.holding)
        self._done = []
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return {f"data_plane/{name}_s": value for name, value in seconds.items()}

    def close(self) -> None:
        """Release all rows that the trainer is not done with, and disconnect."""
        for holding in {id(row.holding): row.holding for row in self._held.values()}.values():
            with contextlib.suppress(DataPlaneError):
                holding.claim.release(timeout_s=5.0)
        self.client.close()

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began


def _leave(holding: _Holding) -> None:
    """The trainer is done with a row of the claim, or holds it under another one. The last one ends the claim."""
    holding.left -= 1
    if not holding.left:
        with contextlib.suppress(ClaimNotFoundError):  # the session had expired
            holding.claim.commit()
