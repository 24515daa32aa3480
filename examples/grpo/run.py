"""The whole loop: `python examples/grpo/run.py --help`.

Starts a data-plane server, two rollout generators and the ranks of a trainer as separate processes. Makes a small
language model (or takes yours), warms it up on worked solutions, and improves it by GRPO on problems with checkable
answers. Ends with the reward curve and an account of every row.

With --checkpoint-every the server keeps its rows in a directory, and each checkpoint of the trainer comes with a
snapshot of the server. Server and generators are started again when they fail. If the trainer fails, all go back to the
newest checkpoint. --resume goes on with a run that was killed as a whole.

With --cluster all of it runs on a Ray cluster: three nodes on this machine, or those of --ray-address, which must share
the folder of --out. Then it also ends with the bytes that each node has put, read and fetched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from http.client import HTTPException
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress

import checkpoints
import flow
import step_display
from controller import Controller
from dataplane_client import DataPlaneClient, connect
from problem_file import INSTRUCTION, Problem, load_problems, prompt_batches
from processes import HERE, Processes, ProcessLostError
from reward_curve import draw_reward_curve
from settings import GrpoSettings, ModelSettings
from tiny_model import load_tokenizer, save_tiny_model
from warmup import tokenizer_texts, warmup_batches

GENERATORS = 2
SUMMARY = "summary.json"
"""A file in the folder of a run: how many rows were trained and dropped, the seconds of its steps, and what its nodes
have put and read, if it had some.
"""
_START_S = 300.0
_FINISH_S = 120.0
"""Time for processes to finish their work when the run ends, in seconds."""


def main(arguments: Sequence[str] | None = None, kind: Callable[[Path, dict[str, str]], Processes] = Processes) -> int:
    args = _arguments(arguments)
    console = Console(highlight=False)
    run_dir: Path = args.out.resolve()
    step = checkpoints.newest(run_dir) if args.resume else None
    if step is None:
        for stale in ("weights", "checkpoints", "data"):
            shutil.rmtree(run_dir / stale, ignore_errors=True)
        (run_dir / "weights").mkdir(parents=True)
    problems = load_problems(args.prompts)
    model_dir = (args.model or make_model(run_dir / "model", problems, args.seed)).resolve()
    if args.cluster:
        from on_cluster import ClusterProcesses  # needs Ray

        kind = partial(ClusterProcesses, ray_address=args.ray_address, ranks=args.tp * args.dp)
    with kind(run_dir, environment()) as processes:
        address = _address(run_dir, args)
        keeps = ["--data-dir", run_dir / "data"] if args.checkpoint_every else []
        start_server(processes, address, args.http, keeps)
        console.print(f"server on {address}, its page at {http_url(processes)}, logs and results in {run_dir}")
        with connect(address, client_name="driver") as client:
            if step is None:
                flow.register(client)
            return Run(client, processes, run_dir, model_dir, problems, args, console).play(step)


def environment() -> dict[str, str]:
    """Of the processes of a run."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


def _address(run_dir: Path, args: argparse.Namespace) -> str:
    return "ray://grpo" if args.cluster else f"unix://{run_dir}/dataplane.sock"


class Run:
    """One run and its display."""

    def __init__(
        self,
        client: DataPlaneClient,
        processes: Processes,
        run_dir: Path,
        model_dir: Path,
        problems: list[Problem],
        args: argparse.Namespace,
        console: Console,
    ) -> None:
        self._client = client
        self._processes = processes
        self._run_dir = run_dir
        self._model_dir = model_dir
        self._problems = problems
        self._args = args
        self._console = console
        self._settings = GrpoSettings()
        self._moved = 0.0
        self._seconds = 0.0
        self._tokenizer = load_tokenizer(model_dir)
        instruction = "" if args.model is None else INSTRUCTION
        self._controller = Controller(client, self._settings, self._tokenizer, processes.check, instruction)

    def play(self, step: int | None) -> int:
        """Begin, or go on from a checkpoint. Learn, and account for the rows. Returns the exit code."""
        with step_display.progress(self._console) as bars:
            while True:
                try:
                    _start_trainer(self._processes, self._run_dir, self._model_dir, step, self._args)
                    if step is not None:  # before, the server may still have the end of the data
                        self._processes.first_lines("trainer", checkpoints.RESUMED, _START_S)
                    _start_generators(self._processes, self._run_dir, self._model_dir, self._args)
                    if step is None:
                        self._warm_up(bars)
                    else:
                        self._controller.resume()
                        bars.console.print(f"all go on from checkpoint {step}")
                    self._learn(bars)
                    balanced = self._account()
                    break
                except ProcessLostError as lost:
                    step = checkpoints.newest(self._run_dir)
                    if step is None:
                        raise
                    bars.console.print(str(lost), markup=False)
        self._conclude(self._controller.progress.rewards)
        return 0 if balanced else 1

    def _learn(self, bars: Progress) -> None:
        steps, every = self._args.steps, self._args.checkpoint_every
        learning = bars.add_task("GRPO", total=steps, completed=self._controller.progress.step, note="")
        bars.console.print(step_display.heading(), style="bold", soft_wrap=True)
        moved = self._moved_bytes()
        batches = prompt_batches(self._problems, self._settings.prompts_per_step, self._args.seed)
        for result in self._controller.learn(batches, steps, every):
            now = self._moved_bytes()
            bars.console.print(step_display.line(result, max(0.0, now - moved) / 1e6), soft_wrap=True)
            moved = now
            nothing = step_display.nothing_learned(self._controller.progress.trained_rows)
            if nothing and result.step == 1:
                bars.console.print(nothing)
            self._seconds += result.seconds
            bars.update(learning, advance=1, note=f"reward {result.reward:.2f}")

    def _warm_up(self, bars: Progress) -> None:
        steps = self._settings.warmup_steps if self._args.model is None else 0
        if not steps:
            self._controller.publish_untrained()
            return
        task = bars.add_task("warm-up", total=steps, note="starting trainers")
        known = {problem.question for problem in self._problems}
        batches = warmup_batches(self._tokenizer, self._settings.warmup_batch_size, self._args.seed, known)
        for loss in self._controller.warm_up(batches, steps):
            bars.update(task, advance=1, note=f"loss {loss:.3f}")

    def _account(self) -> bool:
        """Let the generators finish, clear untrained rows, and compare the counts with the server's.

        Returns whether every row is accounted for.
        """
        self._client.close_partition(flow.ROLLOUTS)
        for index in range(GENERATORS):
            self._processes.wait(f"generator{index}", timeout_s=_FINISH_S)
        self._client.drop_partition(flow.STEPS)
        self._processes.wait("trainer", timeout_s=_FINISH_S)
        cleared = self._client.clear_samples(None, flow.ROLLOUTS)
        rollouts = self._client.partition(flow.ROLLOUTS)
        trained, dropped = self._controller.progress.trained_rows, self._controller.progress.dropped_rows
        fates = [
            ("trained", trained),
            ("dropped (all rewards of the group equal)", dropped),
            ("cleared at the end", cleared),
        ]
        self._console.print(step_display.account(rollouts.rows_put_total, fates))
        self._console.print(
            f"the server says: {rollouts.rows_cleared_total:,} rows cleared, {rollouts.rows:,} resident, "
            f"{rollouts.task('train').consumed_rows_total:,} consumed by task train"
        )
        balanced = rollouts.rows_put_total == trained + dropped + cleared == rollouts.rows_cleared_total
        return balanced and rollouts.task("train").consumed_rows_total == trained

    def _conclude(self, rewards: Sequence[float]) -> None:
        nodes = self._client.server_status().nodes
        if nodes:
            self._console.print(step_display.nodes(nodes))
        picture = self._run_dir / "reward.png"
        draw_reward_curve(rewards, picture)
        progress = self._controller.progress
        nothing = step_display.nothing_learned(progress.trained_rows)
        self._console.print(nothing or step_display.rewards(rewards))
        self._console.print(f"reward curve in {picture}")
        counts = {"trained_rows": progress.trained_rows, "dropped_rows": progress.dropped_rows}
        summary = {**counts, "seconds": self._seconds, "nodes": [asdict(node) for node in nodes]}
        (self._run_dir / SUMMARY).write_text(json.dumps(summary))

    def _moved_bytes(self) -> float:
        """Bytes of values put to and read from the server's life so far, by its metrics, as far as it answers."""
        url = f"{http_url(self._processes)}/metrics"
        broken = (OSError, HTTPException)  # the latter where its life ends in the middle of the answer
        with contextlib.suppress(*broken), urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310  # ours
            families = text_string_to_metric_families(response.read().decode())
            wanted = {f"dataplane_{verb}_bytes_total" for verb in ("put", "commit", "read")}
            self._moved = sum(sample.value for family in families for sample in family.samples if sample.name in wanted)
        return self._moved


def start_server(processes: Processes, address: str, http: str, keeps: Sequence[object] = ()) -> None:
    """Start the server on a Unix socket or in a Ray cluster, and on TCP. http: host:port of its page. keeps: its
    options for durability; with some it is started again when it fails.
    """
    scheme, _, name = address.partition("://")
    place = ["--cluster", "ray", "--cluster-name", name] if scheme == "ray" else ["--listen", address]
    listen = [*place, "--listen", "127.0.0.1:0", "--http", http, "--memory", "128MiB"]
    processes.start("server", ["-m", "dataplane_server", *listen, *keeps], again=bool(keeps))


def http_url(processes: Processes) -> str:
    """Where the server's newest life has its page, and its metrics under /metrics."""
    mark = '"event": "serving"'
    log = processes.first_lines("server", mark, timeout_s=60)
    *_, serving = (json.loads(line) for line in log.splitlines() if mark in line)
    return f"http://{serving['http']}"


def _start_trainer(
    processes: Processes, run_dir: Path, model: Path, step: int | None, args: argparse.Namespace
) -> None:
    """Start the trainer, from a checkpoint if there is one."""
    layout = ["--backend", args.backend, "--packing", args.packing, "--tp", args.tp, "--dp", args.dp]
    extent = ["--steps", args.steps, *(["--no-warmup"] if args.model is not None else [])]
    saved = ["--checkpoints", run_dir / "checkpoints", *([] if step is None else ["--resume", step])]
    saved += ["--figures", run_dir / "figures.jsonl"] if args.figures else []
    ranks = args.tp * args.dp
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    launcher = torchrun if args.backend == "torchrun" else []
    common = _common(run_dir, model, args)
    processes.start("trainer", [*launcher, HERE / "trainer.py", *common, *layout, *extent, *saved])


def _start_generators(processes: Processes, run_dir: Path, model: Path, args: argparse.Namespace) -> None:
    """Start those that do not run."""
    settings, common = GrpoSettings(), _common(run_dir, model, args)
    for index in range(GENERATORS):
        sampling = ["--group-size", settings.group_size, "--temperature", settings.temperature]
        batch = 1 if args.reproducible else settings.prompts_per_step // GENERATORS
        limits = ["--max-new-tokens", settings.max_new_tokens, "--batch", batch, "--seed", args.seed]
        command = [HERE / "generator.py", *common, *sampling, *limits, "--name", f"generator{index}"]
        processes.start(f"generator{index}", command, again=bool(args.checkpoint_every))


def _common(run_dir: Path, model: Path, args: argparse.Namespace) -> list[object]:
    return ["--server", _address(run_dir, args), "--model", model, "--weights", run_dir / "weights"]


def make_model(folder: Path, problems: list[Problem], seed: int) -> Path:
    """Make the small language model in a folder, and return that."""
    save_tiny_model(folder, tokenizer_texts(problems), ModelSettings(), seed)
    return folder


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=GrpoSettings().steps, help="GRPO steps")
    parser.add_argument("--prompts", type=Path, default=HERE / "problems.jsonl", help="JSONL with question and answer")
    parser.add_argument("--model", type=Path, help="a local causal language model with its tokenizer; not warmed up")
    parser.add_argument("--backend", choices=("torchrun", "ray"), default="torchrun", help="runs the trainer's ranks")
    parser.add_argument("--packing", choices=("none", "dynamic", "sequence"), default="dynamic", help="of microbatches")
    parser.add_argument("--tp", type=int, choices=(1, 2, 4), default=1, help="ranks that divide the weights")
    parser.add_argument("--dp", type=int, choices=(1, 2, 4), default=2, help="ranks that divide the rollouts")
    parser.add_argument("--http", default="127.0.0.1:0", help="host:port of the server's page (port 0: any)")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo"), help="folder for logs, weights and pictures")
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS", help="0 (default): no checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on in --out instead of beginning anew there")
    parser.add_argument("--figures", action="store_true", help="write figures of each step to figures.jsonl in --out")
    parser.add_argument("--reproducible", action="store_true", help="sample each prompt alone, whatever else is there")
    parser.add_argument("--cluster", action="store_true", help="on three nodes of a Ray cluster on this machine")
    parser.add_argument("--ray-address", metavar="ADDRESS", help="the same on the nodes of this Ray cluster")
    args = parser.parse_args(arguments)
    args.cluster |= args.ray_address is not None
    if args.cluster and (args.checkpoint_every or args.resume):
        parser.error("a cluster takes no snapshots: leave out --checkpoint-every and --resume")
    if args.resume and not args.checkpoint_every:
        parser.error(
            "--resume needs the rows of the run, which the server keeps only with --checkpoint-every: give both"
        )
    if args.cluster:
        args.backend = "ray"
    return args


if __name__ == "__main__":
    sys.exit(main())
