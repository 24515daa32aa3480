"""Kills the server thousands of times: `make crash KILLS=2000`, `python -m tests.integration.histories.crash --help`.

A round is a campaign of clients whose server is killed at random moments, on a data directory of its own. Checkpoints
and segments are small, so that kills meet them, too. Rounds follow each other, each with another seed, until enough
lives have ended that had answered a claim, commit or release. The first violation ends it all; the files of its round
stay, and the command to repeat it is told.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.integration.failpoints.lives import Lives
from tests.integration.histories.campaign import judged, run
from tests.integration.histories.history import History
from tests.integration.histories.settings import Settings
from tests.waiting import eventually

from dataplane_client.errors import DataPlaneError

_LIFE_S = (0.1, 0.4)
_BEGIN_S = 600.0
_PROCESSES = 8
_SHOWN = 20
_COUNTED = ("kills of working lives", "kills of idle lives", "commits", "redeliveries of a row", "violations")


def one_round(folder: Path, data: Path, durability: str, settings: Settings) -> Counter[str]:
    """What there was of everything."""
    flags = ("--memory", "256MiB", "--log-history", "0", "--durability", durability)
    with Lives(folder, data, *flags, checkpoint_calls=300, segment_bytes=64 << 10) as lives:
        assert lives.begin() is None, lives.log
        with ThreadPoolExecutor(1) as thread:
            killing = thread.submit(_kill_often, lives, settings)
            history = run(settings)
            spans = killing.result()
        assert len(lives.events("recovered")) == len(spans)
        _, counts = judged(history, settings, lives.log)
    idle = _idle(history, spans)
    return Counter({**counts, "kills of working lives": len(spans) - idle, "kills of idle lives": idle})


@contextmanager
def data_folder(durability: str) -> Iterator[Path]:
    """A folder on disk, or one in memory, as that of a pod's volume, if there is room. It goes if the block is well."""
    memory = Path("/dev/shm")  # noqa: S108  # where there is one
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    folder = Path(tempfile.mkdtemp(prefix="crash-", dir=memory if roomy and durability == "process" else None))
    yield folder
    eventually(lambda: _removed(folder))


def _removed(folder: Path) -> bool:
    """Remove a folder, unless a process of the last life, which ends a little later, makes a file there meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _kill_often(lives: Lives, settings: Settings) -> list[tuple[int, int]]:
    """From when all clients are there until the time is over. When each life that was killed began and ended."""
    began = time.monotonic()
    while len([*settings.folder.glob("*.jsonl")]) <= settings.processes:
        assert time.monotonic() < began + _BEGIN_S, "the clients did not begin"
        time.sleep(0.01)
    dice, end, spans = random.Random(settings.seed), time.monotonic() + settings.seconds, []
    while time.monotonic() < end:
        began = time.monotonic_ns()
        time.sleep(dice.uniform(*_LIFE_S))
        lives.kill()
        spans.append((began, time.monotonic_ns()))
        assert lives.begin() is None, lives.log
    return spans


def _idle(history: History, spans: list[tuple[int, int]]) -> int:
    """How many lives answered neither a claim nor a commit or release."""
    endings = [ending.ended_at for ending in history.endings if ending.outcome == "done"]
    times = sorted([*endings, *(delivery.got_at for delivery in history.deliveries)])
    return sum(bisect_left(times, begin) == bisect_left(times, end) for begin, end in spans)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=2000, help="of working lives; without --durability a quarter more")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a round")
    parser.add_argument("--durability", choices=("process", "disk"), help="only this one; both if it is not given")
    chosen = parser.parse_args()
    wanted = {chosen.durability: chosen.kills} if chosen.durability else {}
    totals: dict[str, Counter[str]] = {}
    for durability, kills in (wanted or {"process": chosen.kills, "disk": -(-chosen.kills // 4)}).items():
        total = totals[durability] = Counter[str]()
        while total["kills of working lives"] < kills:
            total += _round(durability, chosen.seed + total["rounds"], chosen.seconds)
    for durability, total in totals.items():
        _say(f"durability {durability}, {total['rounds']} rounds", total)


def _round(durability: str, seed: int, seconds: float) -> Counter[str]:
    """A round in folders of its own, which go if it is well. Ends the program if it is not."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="crash-"))
    settings = Settings(f"unix://{folder}/s", folder / "histories", _PROCESSES, seconds, 1.0, seed)
    settings.folder.mkdir()
    with data_folder(durability) as data:
        try:
            counts = one_round(folder, data, durability, settings)
        except (AssertionError, DataPlaneError):
            (settings.folder / "violations").write_text(traceback.format_exc())
            counts = Counter(violations=1)
        counts.update(rounds=1, seconds=round(time.monotonic() - began))
        _say(f"durability {durability}, seed {seed}", counts)
        if counts["violations"]:
            found = (settings.folder / "violations").read_text().splitlines()[:_SHOWN]
            again = f"--durability {durability} --seed {seed} --seconds {seconds:g} --kills 1"
            found.append(f"files: {folder} {data}\nagain: python -m tests.integration.histories.crash {again}")
            sys.exit("\n".join(found))
    shutil.rmtree(folder)
    return counts


def _say(title: str, counts: Counter[str]) -> None:
    told = ", ".join(f"{counts[name]:,} {name}" for name in (*_COUNTED, "seconds"))
    sys.stdout.write(f"{title}: {told}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
