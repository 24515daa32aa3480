"""The whole loop on one machine: `python examples/grpo/run.py --help`.

Starts a data-plane server, two rollout generators and the ranks of a trainer as separate processes. Makes a small
language model (or takes yours), warms it up on worked solutions, and improves it by GRPO on problems with checkable
answers. Ends with the reward curve and an account of every row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress

import flow
import step_display
from controller import Controller, StepResult
from dataplane_client import DataPlaneClient, connect
from problem_file import INSTRUCTION, Problem, load_problems, prompt_batches
from processes import HERE, Processes
from reward_curve import draw_reward_curve
from settings import GrpoSettings, ModelSettings
from tiny_model import load_tokenizer, save_tiny_model
from warmup import tokenizer_texts, warmup_batches

GENERATORS = 2
_COMPARED_STEPS = 10
_FINISH_S = 120.0
"""Time for processes to finish their work when the run ends, in seconds."""


def main() -> int:
    args = _arguments()
    console = Console(highlight=False)
    run_dir: Path = args.out.resolve()
    weights = run_dir / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    for stale in weights.iterdir():
        shutil.rmtree(stale)
    problems = load_problems(args.prompts)
    model_dir = args.model or _make_model(run_dir / "model", problems, args.seed)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    with Processes(run_dir, environment) as processes:
        address, metrics_url = _start_server(processes, run_dir, args.http)
        console.print(f"server on {address}, metrics on {metrics_url}, logs and results in {run_dir}")
        with connect(address) as client:
            flow.register(client)
            _start_workers(processes, address, model_dir, weights, args)
            return Run(client, processes, metrics_url, model_dir, problems, args, console).play()


class Run:
    """One run and its display."""

    def __init__(
        self,
        client: DataPlaneClient,
        processes: Processes,
        metrics_url: str,
        model_dir: Path,
        problems: list[Problem],
        args: argparse.Namespace,
        console: Console,
    ) -> None:
        self._client = client
        self._processes = processes
        self._metrics_url = metrics_url
        self._problems = problems
        self._args = args
        self._console = console
        self._settings = GrpoSettings()
        self._tokenizer = load_tokenizer(model_dir)
        instruction = "" if args.model is None else INSTRUCTION
        self._controller = Controller(client, self._settings, self._tokenizer, processes.check, instruction)

    def play(self) -> int:
        """Warm up, learn, and account for the rows. Returns the exit code."""
        results = []
        with step_display.progress(self._console) as bars:
            self._warm_up(bars)
            learning = bars.add_task("GRPO", total=self._args.steps, note="")
            bars.console.print(step_display.heading(), style="bold", soft_wrap=True)
            moved = self._moved_bytes()
            batches = prompt_batches(self._problems, self._settings.prompts_per_step, self._args.seed)
            for result in self._controller.learn(batches, self._args.steps):
                now = self._moved_bytes()
                bars.console.print(step_display.line(result, (now - moved) / 1e6), soft_wrap=True)
                moved = now
                results.append(result)
                bars.update(learning, advance=1, note=f"reward {result.reward:.2f}")
        balanced = self._account()
        self._conclude(results)
        return 0 if balanced else 1

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
        deadline = time.monotonic() + _FINISH_S
        while self._client.partition(flow.PROMPTS).rows:
            self._processes.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the generators did not finish their prompts within {_FINISH_S:.0f} s")
            time.sleep(0.05)
        self._client.drop_partition(flow.PROMPTS)
        for index in range(GENERATORS):
            self._processes.wait(f"generator{index}", timeout_s=_FINISH_S)
        self._client.drop_partition(flow.STEPS)
        self._processes.wait("trainer", timeout_s=_FINISH_S)
        cleared = self._client.clear_samples(None, flow.ROLLOUTS)
        rollouts = self._client.partition(flow.ROLLOUTS)
        trained, dropped = self._controller.trained_rows, self._controller.dropped_rows
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

    def _conclude(self, results: list[StepResult]) -> None:
        picture = self._args.out.resolve() / "reward.png"
        draw_reward_curve([result.reward for result in results], picture)
        compared = min(_COMPARED_STEPS, len(results) // 2)
        if compared:
            first = sum(result.reward for result in results[:compared]) / compared
            last = sum(result.reward for result in results[-compared:]) / compared
            self._console.print(
                f"mean reward of the first {compared} steps {first:.3f}, of the last {compared} [bold]{last:.3f}[/bold]"
            )
        self._console.print(f"reward curve in {picture}")

    def _moved_bytes(self) -> float:
        """Bytes of values put to and read from the server so far, by its metrics."""
        with urllib.request.urlopen(self._metrics_url, timeout=10) as response:  # noqa: S310  # our own server's address
            families = text_string_to_metric_families(response.read().decode())
            wanted = {f"dataplane_{verb}_bytes_total" for verb in ("put", "commit", "read")}
            return sum(sample.value for family in families for sample in family.samples if sample.name in wanted)


def _start_server(processes: Processes, run_dir: Path, http: str) -> tuple[str, str]:
    """Start the server on a Unix socket and on TCP. Returns its socket's address and the URL of its metrics."""
    socket = run_dir / "dataplane.sock"
    listen = ["--listen", f"unix://{socket}", "--listen", "127.0.0.1:0", "--http", http]
    processes.start("server", ["-m", "dataplane_server", *listen, "--memory", "512MiB"])
    mark = '"event": "serving"'
    log = processes.first_lines("server", mark, timeout_s=60)
    serving = next(json.loads(line) for line in log.splitlines() if mark in line)
    return f"unix://{socket}", f"http://{serving['http']}/metrics"


def _start_workers(processes: Processes, address: str, model: Path, weights: Path, args: argparse.Namespace) -> None:
    settings = GrpoSettings()
    common = ["--server", address, "--model", model, "--weights", weights]
    layout = ["--backend", args.backend, "--packing", args.packing, "--tp", args.tp, "--dp", args.dp]
    extent = ["--steps", args.steps, *(["--no-warmup"] if args.model is not None else [])]
    ranks = args.tp * args.dp
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    launcher = torchrun if args.backend == "torchrun" else []
    processes.start("trainer", [*launcher, HERE / "trainer.py", *common, *layout, *extent])
    for index in range(GENERATORS):
        sampling = ["--group-size", settings.group_size, "--temperature", settings.temperature]
        limits = ["--max-new-tokens", settings.max_new_tokens, "--batch", settings.prompts_per_step // GENERATORS]
        seeds = ["--seed", args.seed * GENERATORS + index]
        processes.start(f"generator{index}", [HERE / "generator.py", *common, *sampling, *limits, *seeds])


def _make_model(folder: Path, problems: list[Problem], seed: int) -> Path:
    save_tiny_model(folder, tokenizer_texts(problems), ModelSettings(), seed)
    return folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=GrpoSettings().steps, help="GRPO steps")
    parser.add_argument("--prompts", type=Path, default=HERE / "problems.jsonl", help="JSONL with question and answer")
    parser.add_argument("--model", type=Path, help="a local causal language model with its tokenizer; not warmed up")
    parser.add_argument("--backend", choices=("torchrun", "ray"), default="torchrun", help="runs the trainer's ranks")
    parser.add_argument("--packing", choices=("none", "dynamic", "sequence"), default="dynamic", help="of microbatches")
    parser.add_argument("--tp", type=int, choices=(1, 2, 4), default=1, help="ranks that divide the weights")
    parser.add_argument("--dp", type=int, choices=(1, 2, 4), default=2, help="ranks that divide the rollouts")
    parser.add_argument("--http", default="127.0.0.1:0", help="host:port of the server's metrics (port 0: any)")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo"), help="folder for logs, weights and pictures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
