"""A trainer that drives a rollout worker as TRL's does, without TRL, torch's loader or a model.

It fetches a micro-batch ahead, runs several micro-batches a step, and calls callback and worker in TRL's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from dataplane_trl import DataPlaneRolloutWorker, RolloutSample

MICRO_BATCH, ACCUMULATED = 2, 2


class Loader:
    """A data loader as far as the worker knows one."""

    def __init__(self) -> None:
        self.collate_fn: Any = lambda examples: [sample["name"] for row in examples[0] for sample in row.samples]


class PlainTrainer:
    """Trains from the step of a checkpoint on; `trained` has what it was trained on, by step. Samples whose model
    version is more than max_staleness behind are dropped, as TRL drops them.
    """

    def __init__(
        self, worker: DataPlaneRolloutWorker, *, step: int = 0, save_strategy: str = "steps", max_staleness: int = 99
    ) -> None:
        self.worker = worker
        self.trained: dict[int, list[str]] = {}
        self.model_version = 0
        self.max_staleness = max_staleness
        self._state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        self._args = SimpleNamespace(weight_sync_steps=1, save_strategy=save_strategy)
        self.loader = Loader()
        self._tell("on_train_begin", train_dataloader=self.loader)
        self._sync()
        worker.start()
        self._ahead = self._micro_batches()
        self._next: list[str] | None = None

    def run(self, steps: int = 1) -> list[str]:
        """What these steps were trained on."""
        before = self._state.global_step
        for _ in range(steps):
            self.run_half()
            self.trained.setdefault(self._state.global_step + 1, []).extend(self._fetch())
            self._state.global_step += 1
            self._tell("on_step_end")
            self._sync()
        return [name for step in range(before, before + steps) for name in self.trained[step + 1]]

    def run_half(self) -> None:
        """All but the last micro-batch of a step."""
        for _ in range(ACCUMULATED - 1):
            self.trained.setdefault(self._state.global_step + 1, []).extend(self._fetch())
            self._tell("on_substep_end")

    def save(self) -> None:
        self._tell("on_save")

    def _tell(self, event: str, **arguments: object) -> None:
        getattr(self.worker.callback, event)(self._args, self._state, SimpleNamespace(), **arguments)

    def _sync(self) -> None:
        self.model_version += 1
        self.worker.update_model_version(self.model_version)

    def _fetch(self) -> list[str]:
        now = next(self._ahead) if self._next is None else self._next
        self._next = next(self._ahead)
        return now

    def _micro_batches(self) -> Iterator[list[str]]:
        while True:
            samples = [self._sample() for _ in range(MICRO_BATCH)]
            dicts = [{"name": name_of(sample), "metrics": sample.metrics} for sample in samples]
            yield self.loader.collate_fn([[SimpleNamespace(samples=dicts[:1]), SimpleNamespace(samples=dicts[1:])]])

    def _sample(self) -> RolloutSample:
        while True:
            sample = self.worker.rollout_buffer.get(timeout=100.0)
            if self.model_version - (sample.model_version or 0) <= self.max_staleness:
                return sample


def name_of(sample: RolloutSample) -> str:
    return str(sample.completion)
