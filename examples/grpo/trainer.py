"""The trainer: claims each step's rollouts and trains a policy on them, over ranks that share the work.

torchrun starts one process for each rank, with its worker; with `--backend ray`, one process drives workers that are
Ray actors. Both run this script. The driver alone claims and commits; the other processes learn from it which rows to
use.

A training step has two stages. First the driver claims rollouts for the task "prev_lp"; the workers read them,
recompute the log-probabilities of their tokens under the current weights, and write them back as a column. Then the
driver claims rollouts that have that column for the task "train". The tokens of dropped rollouts, which teach nothing,
still count in the divisor of the loss. Otherwise a step would be larger the fewer groups teach something.

A checkpoint has the ledger of the run: which prompts each step has used. With --figures the driver writes the figures
of each step's rollouts, and of its time, to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import dataplane_training_figures as training
from checkpoints import RESUMED
from dataplane_client import DataPlaneClient, KVBatchMeta, connect
from dataplane_client.client import Claim
from dataplane_client.errors import NotFoundError
from flow import (
    PREV_LP_FIELDS,
    REPORT,
    ROLLOUTS,
    SAMPLE_FIELDS,
    STEPS,
    TRAIN_FIELDS,
    WARMUP,
    while_driver_lives,
)
from policy_steps import PolicySteps, known
from processes import end_with_parent
from settings import GrpoSettings
from trainer_adapter.automodel.config import PolicyConfig
from trainer_adapter.losses import NLLLoss
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.worker import AutomodelPolicyWorker
from trainer_adapter.worker_groups import RayGroupOptions, RayWorkerGroup, TorchrunWorkerGroup, WorkerGroup
from trainer_config import policy_config
from weight_files import publish, remove_newer

_WAIT_S = 300.0
_KEPT = 3
"""Versions of weights that are kept; more if a checkpoint needs them."""


class JsonLines:
    """A tracker that writes a line for each step, where others pass a run of Weights & Biases."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        with self._path.open("a") as lines:
            lines.write(json.dumps({"step": step, **metrics}) + "\n")


class Trainer(PolicySteps):
    """The loop over steps. client: used by the driver only. tracker: of figures; None for no figures."""

    def __init__(
        self,
        client: DataPlaneClient,
        group: WorkerGroup,
        policy: DataPlanePolicy,
        weights: Path,
        checkpoints: Path,
        settings: GrpoSettings,
        clock: training.StepClock,
        tracker: JsonLines | None,
    ) -> None:
        super().__init__(client, group, policy, settings)
        self._clock = clock
        self._tracker = tracker
        self._weights = weights
        self._checkpoints = checkpoints
        self._saved: int | None = None
        self._ledger: list[dict[str, Any]] = []

    def resume(self, step: int) -> None:
        """Go back to a checkpoint, and the server to the snapshot that was taken with it."""
        folder = self._checkpoints / str(step)
        if self._group.is_driver:
            remove_newer(self._weights, step)
        self._ledger, self._saved = json.loads((folder / "ledger.json").read_text()), step
        self._policy.load_checkpoint(str(folder), str(folder), data_plane=self._client)
        print(f"{RESUMED} {step}")  # in the log

    def run(self) -> None:
        """Take steps until their partition is dropped."""
        while True:
            step = self._next_step() if self._group.is_driver else None
            order = self._group.from_driver({} if step is None else {"order": (step.meta.tags or [{}])[0]})
            if "order" not in order:
                return
            report = self._take(order["order"])
            if step is not None:
                step.commit({REPORT: [report]})

    def _next_step(self) -> Claim | None:
        """Claim the next step; None when all steps are done."""
        try:
            return while_driver_lives(lambda: self._client.claim(STEPS, "train", [], 1, timeout_s=_WAIT_S))
        except NotFoundError:
            return None

    def _take(self, order: Mapping[str, Any]) -> dict[str, float]:
        """Carry out one step as its tags order it. Returns the report for the controller."""
        began = time.monotonic()
        rows, tokens = int(order["rows"]), float(order["tokens"])
        step = int(order["step"])
        metrics = {"loss": 0.0, "grad_norm": 0.0, "tokens": 0.0}
        used: Counter[str] = Counter()
        if order["kind"] == "checkpoint":
            self._save(step)
        elif order["kind"] == "warmup":
            metrics = self._warm_up(rows, tokens)
            self._clock.lap()
        elif rows:
            metrics, used = self._learn(rows, tokens, step)
        if order["publish"]:
            self._ledger.append({"step": step, "rows": used, "dropped": order["dropped"], **metrics})
            oldest = 1 + step - _KEPT if self._saved is None else min(1 + step - _KEPT, self._saved - 1)
            publish(self._policy, self._weights, step, oldest, is_driver=self._group.is_driver)
        return {**metrics, "seconds": time.monotonic() - began}

    def _warm_up(self, rows: int, tokens: float) -> dict[str, float]:
        with self._claimed(WARMUP, "train", SAMPLE_FIELDS, rows) as meta:
            return self._update(meta, NLLLoss(), tokens)

    def _learn(self, rows: int, tokens: float, step: int) -> tuple[dict[str, float], Counter[str]]:
        """Returns the metrics, and how many rows of each prompt were trained."""
        with self._claimed(ROLLOUTS, "prev_lp", PREV_LP_FIELDS, rows) as meta:
            self._policy.prepare_for_lp_inference()
            self._policy.get_logprobs_from_meta(meta)
        with self._claimed(ROLLOUTS, "train", TRAIN_FIELDS, rows) as meta:
            metrics = self._learn_in_parts(meta, tokens)
            if self._tracker is not None and self._group.is_driver:
                batch = self._client.read_columns(meta, training.FIELDS)
                figures = training.figures_of(batch, longest=self._settings.max_new_tokens).as_metrics()
                training.log_metrics(self._tracker, {**figures, **self._clock.lap().as_metrics()}, step)
        return metrics, Counter(sample_id.partition("_")[0] for sample_id in meta.sample_ids)

    def _save(self, step: int) -> None:
        """Write a checkpoint, unless it is the one that was loaded: its snapshot has the order to write it."""
        folder = self._checkpoints / str(step)
        if step == self._saved:
            return
        if self._group.is_driver:
            shutil.rmtree(folder, ignore_errors=True)  # left from a save that did not end
            folder.mkdir(parents=True)
            (folder / "ledger.json").write_text(json.dumps(self._ledger))
        self._policy.save_checkpoint(str(folder), str(folder), None, {}, data_plane=self._client)
        self._saved = step

    @contextmanager
    def _claimed(self, partition: str, task: str, fields: tuple[str, ...], rows: int) -> Iterator[KVBatchMeta]:
        """Claim rows on the driver while all ranks work on them, ordered by their ids; commit when all are done."""
        if not self._group.is_driver:
            yield known(self._group.from_driver(None))
            return
        with self._client.claim(partition, task, fields, rows, timeout_s=_WAIT_S) as claim:
            ids = claim.meta.sample_ids
            yield self._group.from_driver(claim.meta.subset(sorted(range(len(ids)), key=ids.__getitem__)))


def _workers(args: argparse.Namespace, config: PolicyConfig) -> WorkerGroup:
    arguments = {"config": config, "data_plane": args.server, "init_reference_model": False}
    if args.backend == "torchrun":
        return TorchrunWorkerGroup(AutomodelPolicyWorker, arguments)
    import ray

    ranks = args.dp * args.tp
    own = {"num_cpus": ranks, "include_dashboard": False, "object_store_memory": 256 << 20}
    ray.init(**({} if "RAY_ADDRESS" in os.environ else own))
    return RayWorkerGroup(AutomodelPolicyWorker, arguments, RayGroupOptions(num_workers=ranks, gpus_per_worker=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--resume", type=int, metavar="STEP", help="go on from this checkpoint")
    parser.add_argument("--backend", choices=("torchrun", "ray"), required=True)
    parser.add_argument("--packing", choices=("none", "dynamic", "sequence"), required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--dp", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--no-warmup", action="store_true")
    parser.add_argument("--figures", type=JsonLines, metavar="FILE", help="append figures of each step")
    args = parser.parse_args()
    end_with_parent()
    torch.set_num_threads(1)
    settings = GrpoSettings()
    config = policy_config(args.model, settings, args.packing, args.tp, args.steps, not args.no_warmup)
    group = _workers(args, config)
    policy = DataPlanePolicy(config, group)
    try:
        with connect(args.server, client_name="trainer") as client, training.StepClock() as clock:
            trainer = Trainer(client, group, policy, args.weights, args.checkpoints, settings, clock, args.figures)
            if args.resume is not None:
                trainer.resume(args.resume)
            trainer.run()
    finally:
        policy.shutdown()


if __name__ == "__main__":
    main()
