"""Makes each of a table of faults in a copy of the library, and runs the tests that must find it.

    python -m tests.mutants [--only NAME ...] [--jobs 2] [--out FILE]

The tests are first run without a fault. The command ends with 1 if a fault was not found, and with 2 if a row of the
table is out of date, a test fails without a fault, or a fault keeps tests from running.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant
from tests.mutants.source_copy import ROOT, SourceCopy
from tests.mutants.table import MUTANTS
from tests.mutants.verdict import Verdict, check_sound, look


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no test and no copy is left behind
    chosen = [mutant for mutant in MUTANTS if not given.only or any(part in mutant.name for part in given.only)]
    for mutant in chosen:
        mutant.check((ROOT / mutant.file).read_text())
    with tempfile.TemporaryDirectory(prefix="m-") as folder, contextlib.ExitStack() as closing:
        Path(folder).chmod(0o755)  # some tests are processes of other users
        copies = [SourceCopy(Path(folder).resolve() / str(job)) for job in range(given.jobs)]
        for copy in copies:
            closing.callback(copy.close)
        if not given.no_sound_run:
            _say(f"{len(chosen)} mutants; first their tests without any")
            began = time.monotonic()
            failure = check_sound(copies, [mutant.where for mutant in chosen])
            _say(failure or f"green after {time.monotonic() - began:.0f} s")
            if failure:
                return 2
        verdicts = _all_verdicts(chosen, copies, given.timeout)
    table = _table(chosen, verdicts)
    print(table)  # noqa: T201  # what a command says
    if given.out:
        given.out.write_text(table + "\n")
    if any(verdict.error for verdict in verdicts):
        return 2
    return int(any(not verdict.found_by for verdict in verdicts))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Look for seeded faults.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="mutants with this in their names")
    parser.add_argument("--jobs", type=int, default=2, help="copies in which mutants are looked for at a time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each mutant; a hang counts as found")
    parser.add_argument("--no-sound-run", action="store_true", help="skip the run without a fault")
    parser.add_argument("--out", type=Path, help="where the table is written, too")
    return parser.parse_args()


def _all_verdicts(chosen: Sequence[Mutant], copies: Sequence[SourceCopy], timeout_s: float) -> list[Verdict]:
    free: SimpleQueue[SourceCopy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def verdict_of(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            with copy.having(mutant):
                return look(copy, mutant.where, timeout_s)
        finally:
            free.put(copy)

    verdicts: dict[Mutant, Verdict] = {}
    with ThreadPoolExecutor(len(copies)) as pool:
        looks = {pool.submit(verdict_of, mutant): mutant for mutant in chosen}
        try:
            for finished in as_completed(looks):
                mutant, verdict = looks[finished], finished.result()
                verdicts[mutant] = verdict
                of = f"{len(verdicts):3} of {len(chosen)}"
                _say(f"{of}  {verdict.seconds:5.1f} s  {mutant.name}: {_outcome(verdict)}")
                if verdict.error:
                    _say(verdict.error[-3000:])
        except BaseException:  # such as Ctrl-C, which the tests do not get
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
            raise
    return [verdicts[mutant] for mutant in chosen]


def _outcome(verdict: Verdict) -> str:
    if verdict.error:
        return "ERROR, no test could be run"
    return f"found by {verdict.found_by}" if verdict.found_by else "SURVIVED"


def _table(chosen: Sequence[Mutant], verdicts: Sequence[Verdict]) -> str:
    """In Markdown, with a sum at the end."""
    lines = ["| mutant | what users would suffer | found by | s |", "|---|---|---|---|"]
    for mutant, verdict in zip(chosen, verdicts, strict=True):
        found = verdict.found_by or _outcome(verdict)
        lines.append(f"| {mutant.name} | {mutant.users} | {found} | {verdict.seconds:.1f} |")
    found_count = sum(bool(verdict.found_by) for verdict in verdicts)
    seconds = sum(verdict.seconds for verdict in verdicts)
    return "\n".join([*lines, "", f"{found_count} of {len(chosen)} found; {seconds:.0f} s of tests"])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # what a command says


if __name__ == "__main__":
    sys.exit(main())
