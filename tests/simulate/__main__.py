"""Runs seeds of the simulation, each in one of several processes, and ends with 1 if a promise was broken.

    python -m tests.simulate --first 0 --seeds 10000 --events 1000

Progress and figures are on stderr. A seed that fails is told with its last calls and the command that replays it.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from functools import partial

from tests.simulate.disk import in_memory
from tests.simulate.simulation import Violation, simulate

_PROGRESS_S = 10.0


def main() -> int:
    given = _arguments()
    seeds = range(given.first, given.first + given.seeds)
    began, told, failed = time.monotonic(), 0.0, 0
    total = Counter[str]()
    root = tempfile.TemporaryDirectory(prefix="simulations-", dir=in_memory())  # of seeds whose process is ended, too
    with root as folder, multiprocessing.get_context("fork").Pool(given.processes) as pool:
        run = partial(_run, folder=folder, events=given.events, whole_one_in=given.whole_one_in)
        for done, (seed, counts, violation) in enumerate(pool.imap_unordered(run, seeds), 1):
            total += counts
            failed += bool(violation)
            if violation:
                print(violation, file=sys.stderr, flush=True)  # noqa: T201  # what a command says
            seconds = time.monotonic() - began
            if seconds - told > _PROGRESS_S or done == len(seeds) or (violation and given.until_found):
                told = seconds
                print(_line(done, len(seeds), failed, total, seconds), file=sys.stderr, flush=True)  # noqa: T201  # what a command says
            if violation and given.until_found:
                print(f"found by seed {seed}")  # noqa: T201  # what a command says
                break
    return int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description="Simulate servers that die.")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--events", type=int, default=1000, help="of each seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--whole-one-in", type=int, default=8, help="events to each whole comparison with the model")
    parser.add_argument("--until-found", action="store_true", help="end at the first seed that fails")
    return parser.parse_args()


def _run(seed: int, folder: str, events: int, whole_one_in: int) -> tuple[int, Counter[str], str]:
    try:
        return seed, simulate(seed, events, whole_one_in, folder).counts, ""
    except Violation as violation:
        command = f"python -m tests.simulate --first {seed} --seeds 1 --events {events} --whole-one-in 1"
        return seed, Counter(events=events), f"seed {seed}: {violation}\nTo see it again: {command}"
    finally:
        gc.collect()


def _line(done: int, seeds: int, failed: int, total: Counter[str], seconds: float) -> str:
    figures = ", ".join(f"{count:,} {what}" for what, count in total.most_common())
    rate = f"{total['events'] / seconds:,.0f} events/s"
    return f"{done} of {seeds} seeds in {seconds:.0f} s, {failed} failed; {rate}: {figures}"


if __name__ == "__main__":
    sys.exit(main())
