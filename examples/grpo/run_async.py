"""The asynchronous loop on one machine: `python examples/grpo/run_async.py --help`.

Model, problems, reward and warm-up are those of `run.py`. There the generators answer the prompts of one step while the
trainer learns from the step before. Here neither waits for the other: generators sample with the newest weights that
they have, and the trainer takes what is ready, up to two versions old. The server paces the generators, and drops
groups that teach nothing, and what turns stale. A generator that dies is started again.

Ends with tables: how stale the trained rollouts were, who waited for whom, and an account of every row, which must
balance. --compare runs `run.py` for as many rollouts afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import async_flow
import run
import step_display
from controller import StepResult
from dataplane_client import DataPlaneClient, connect
from dataplane_client.errors import ClaimTimeoutError, EndOfDataError
from dataplane_client.records.descriptions import PartitionDescription
from flow import REPORT, ROLLOUTS, STEPS
from problem_file import load_problems
from processes import HERE, Processes
from settings import GrpoSettings

_STEPS = 30
_LOOK_S = 1.0
_MOMENT_S = 0.1
_WAIT_S = 300.0
_FINISH_S = 120.0
_STATES = ("serving", "waiting", "waiting_for_consumers")
_REMOVED = (
    ("trained", "consumed"),
    ("too stale", "stale"),
    ("all rewards of the group equal", "filtered"),
    ("of a generator that died, or at the end", "rolled_back"),
)


def main(arguments: Sequence[str] | None = None, kind: Callable[[Path, dict[str, str]], Processes] = Processes) -> int:
    args = _arguments(arguments)
    console = Console(highlight=False)
    run_dir: Path = args.out.resolve()
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    model = (args.model or run.make_model(run_dir / "model", load_problems(args.prompts), args.seed)).resolve()
    with kind(run_dir, run.environment()) as processes:
        address = f"unix://{run_dir}/dataplane.sock"
        run.start_server(processes, address, args.http)
        console.print(f"server on {address}, its page at {run.http_url(processes)}, logs in {run_dir}")
        with connect(address, client_name="driver") as client:
            async_flow.register(client)
            _start_workers(processes, run_dir, model, args)
            played = AsyncRun(client, processes, args.steps, run_dir / run.SUMMARY, console)
            balanced = played.play()
    if args.compare:
        balanced = _compare(played, args, run_dir, console) and balanced
    return 0 if balanced else 1


class AsyncRun:
    """One run and its display. used_rows: those that were trained, or dropped because they teach nothing."""

    def __init__(
        self, client: DataPlaneClient, processes: Processes, steps: int, summary: Path, console: Console
    ) -> None:
        self._client = client
        self._processes = processes
        self._steps = steps
        self._summary = summary
        self._console = console
        self._results: list[StepResult] = []
        self._staleness: Counter[int] = Counter()
        self.seconds = 0.0

    @property
    def trained_rows(self) -> int:
        return sum(result.trained_rows for result in self._results)

    @property
    def used_rows(self) -> int:
        return self.trained_rows + sum(result.dropped_rows for result in self._results)

    def play(self) -> bool:
        """Show the steps until the trainer ends, then account for the rows. Returns whether all is in order."""
        with step_display.progress(self._console) as bars:
            self._show_steps(bars)
        waited = self._waiting_table(self._client.partition(ROLLOUTS))
        for index in range(run.GENERATORS):
            self._processes.wait(f"generator{index}", _FINISH_S)
        self._client.drop_partition(async_flow.WEIGHTS)
        self._processes.wait("trainer", _FINISH_S)
        rollouts = self._at_the_end()
        self._console.print(self._staleness_table(), waited, self._generators_table())
        return self._account(rollouts)

    def _at_the_end(self) -> PartitionDescription:
        """The rollouts, once the groups of generators that died are rolled back."""
        deadline = time.monotonic() + _FINISH_S
        while (rollouts := self._client.partition(ROLLOUTS)).open_groups and time.monotonic() < deadline:
            time.sleep(_MOMENT_S)
        return rollouts

    def _show_steps(self, bars: Progress) -> None:
        warm_up = bars.add_task("warm-up", total=GrpoSettings().warmup_steps, note="starting trainers")
        learning = bars.add_task("GRPO", total=self._steps, note="", start=False)
        moved, began = 0, time.monotonic()
        for report in self._reports():
            if "warm_up" in report:
                bars.update(warm_up, completed=report["warm_up"], note=f"loss {report['loss']:.3f}")
            elif "result" not in report:
                bars.start_task(learning)
                bars.console.print(step_display.heading(), style="bold", soft_wrap=True)
                began = time.monotonic()
            else:
                self._staleness.update(report["staleness"])
                self.seconds = time.monotonic() - began
                rollouts = self._client.partition(ROLLOUTS)
                dropped = rollouts.removed_rows["filtered"] - (self.used_rows - self.trained_rows)
                result = StepResult(**report["result"] | {"dropped_rows": dropped})
                self._results.append(result)
                now = rollouts.written_bytes_total + rollouts.read_bytes_total
                bars.console.print(step_display.line(result, (now - moved) / 1e6), soft_wrap=True)
                moved = now
                bars.update(learning, advance=1, note=f"reward {result.reward:.2f}")

    def _reports(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + _WAIT_S
        while True:
            self._processes.check()
            try:
                with self._client.claim(STEPS, "report", [REPORT], 1, timeout_s=_LOOK_S) as claim:
                    yield self._client.get_data(claim.meta)[REPORT][0]
            except EndOfDataError:
                return
            except ClaimTimeoutError:
                if time.monotonic() > deadline:
                    if self._client.partition(ROLLOUTS).removed_rows["filtered"]:
                        self._console.print(step_display.nothing_learned(self.trained_rows))
                    raise
            else:
                deadline = time.monotonic() + _WAIT_S

    def _staleness_table(self) -> Table:
        table = _table("staleness of the trained rollouts, in versions", "versions", "rows", "")
        for versions, rows in sorted(self._staleness.items()):
            share = rows / self.trained_rows
            table.add_row(str(versions), f"{rows:,}", f"{share:4.0%} " + "█" * round(40 * share))
        return table

    def _waiting_table(self, rollouts: PartitionDescription) -> Table:
        table = _table("who waited for whom: task train", "state", "s", "")
        seconds = rollouts.task("train").state_seconds
        total = sum(seconds[state] for state in _STATES)
        for state in _STATES:
            table.add_row(state.replace("_", " "), f"{seconds[state]:.1f}", f"{seconds[state] / total:.0%}")
        return table

    def _generators_table(self) -> Table:
        names = ("generator", "busy", "waited for room", "took weights", "groups finished")
        table = _table("generators", *names)
        page = self._client.list_samples(async_flow.GENERATORS).meta
        for name, tags in zip(page.sample_ids, page.tags or [], strict=True):
            seconds = [float(tags.get(key) or 0) for key in ("busy_s", "room_s", "weights_s")]
            shares = [f"{each:.1f} s {each / max(sum(seconds), 1e-9):6.1%}" for each in seconds]
            table.add_row(name, *shares, f"{float(tags.get('groups') or 0):.0f}")
        return table

    def _account(self, rollouts: PartitionDescription) -> bool:
        """Compare the server's counts with one another, and with what the trainer says."""
        removed = rollouts.removed_rows
        fates = [*((name, removed[reason]) for name, reason in _REMOVED), ("resident", rollouts.rows)]
        self._console.print(step_display.account(rollouts.rows_put_total, fates))
        self._console.print(_rates(self.used_rows, self.trained_rows, self.seconds))
        rewards = [result.reward for result in self._results]
        self._console.print(step_display.rewards(rewards))
        rows = {"put": rollouts.rows_put_total, "resident": rollouts.rows, **removed}
        summary = {"rows": rows, "staleness": self._staleness, "rewards": rewards, "seconds": self.seconds}
        self._summary.write_text(json.dumps(summary))
        told = (self.trained_rows, self._staleness.total())
        counted = (rollouts.task("train").consumed_rows_total, removed["consumed"])
        adds_up = rollouts.rows_put_total == sum(rows for _, rows in fates)
        return adds_up and told == counted and max(self._staleness) <= async_flow.MAX_STALENESS


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None, title_justify="left", title_style="bold", header_style="dim")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 or not name else "right")
    return table


def _rates(used: int, trained: int, seconds: float) -> str:
    return f"{used / seconds:.0f} rollouts/s used, {trained / seconds:.0f}/s trained, over {seconds:.1f} s"


def _compare(played: AsyncRun, args: argparse.Namespace, run_dir: Path, console: Console) -> bool:
    """Run the synchronous example for as many rollouts, and print the ratios of speed."""
    settings = GrpoSettings()
    steps = max(1, round(played.used_rows / (settings.prompts_per_step * settings.group_size)))
    given = ["--model", args.model] if args.model else []
    console.rule(f"the synchronous loop, {steps} steps")
    common = ["--steps", steps, "--seed", args.seed, "--prompts", args.prompts.resolve(), "--dp", args.dp]
    code = run.main([str(word) for word in (*common, "--out", run_dir / "synchronous", *given)])
    other = json.loads((run_dir / "synchronous" / run.SUMMARY).read_text())
    trained, seconds = other["trained_rows"], other["seconds"]
    used = trained + other["dropped_rows"]
    console.print("asynchronous:", _rates(played.used_rows, played.trained_rows, played.seconds))
    console.print("synchronous: ", _rates(used, trained, seconds))
    ratios = [
        (mine / played.seconds) / (theirs / seconds)
        for mine, theirs in ((played.used_rows, used), (played.trained_rows, trained))
    ]
    console.print(f"asynchronous to synchronous: {ratios[0]:.2f} in rollouts used, {ratios[1]:.2f} in rollouts trained")
    return code == 0


def _start_workers(processes: Processes, run_dir: Path, model: Path, args: argparse.Namespace) -> None:
    common = ["--server", f"unix://{run_dir}/dataplane.sock", "--model", model, "--prompts", args.prompts.resolve()]
    common += ["--seed", args.seed, *(["--no-warmup"] if args.model is not None else [])]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", args.dp]
    processes.start("trainer", [*torchrun, HERE / "async_trainer.py", *common, "--steps", args.steps])
    for index in range(run.GENERATORS):
        own = ["--name", f"generator{index}", "--folder", run_dir]
        processes.start(f"generator{index}", [HERE / "async_generator.py", *common, *own], again=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=_STEPS, help="GRPO steps")
    parser.add_argument("--prompts", type=Path, default=HERE / "problems.jsonl", help="JSONL with question and answer")
    parser.add_argument("--model", type=Path, help="a local causal language model with its tokenizer; not warmed up")
    parser.add_argument("--dp", type=int, choices=(1, 2), default=2, help="ranks of the trainer")
    parser.add_argument("--http", default="127.0.0.1:0", help="host:port of the server's page (port 0: any)")
    parser.add_argument("--compare", action="store_true", help="run the synchronous example, too")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_async"), help="folder for logs and results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
