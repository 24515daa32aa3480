"""`python -m dataplane_conformance [ADDRESS]`: which promises a data plane keeps. Exit code 1: one is broken; 2: one
could not be judged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from dataplane_conformance.drivers import DRIVERS, driver_named
from dataplane_conformance.lab import Outcome, Promise
from dataplane_conformance.promises import PROMISES
from dataplane_conformance.report import as_json, head, line
from dataplane_conformance.system import Driver, RefusedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Try promises of a data plane: clients are killed, stopped and delayed, and every row is accounted for."""
    parser = argparse.ArgumentParser("python -m dataplane_conformance", description=main.__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("address", nargs="?", help="of a server, which no promise then kills (default: the driver starts its own)")
    names = ", ".join(DRIVERS)
    add("--driver", default="rl-dataplane", metavar="NAME", help=f"{names}, or module:Class (default: %(default)s)")
    add("--only", default=[], action="append", metavar="WORDS", help="promises with these words; repeatable")
    add("--repeat", type=int, default=1, metavar="N", help="try each promise N times, or until it is broken")
    add("--json", action="store_true", help="write JSON, with the names of all rows")
    flags = parser.parse_args(arguments)
    chosen = [one for one in PROMISES if not flags.only or any(words in one.sentence for words in flags.only)]
    if not chosen:
        parser.error(f"--only: no promise has the words {flags.only}")
    if flags.repeat < 1:
        parser.error(f"--repeat: must be at least 1, got {flags.repeat}")
    try:
        kind: Callable[..., Driver] = driver_named(flags.driver)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        parser.error(f"--driver {flags.driver}: {error}")
    try:
        driver = kind(flags.address) if flags.address else kind()
    except TypeError:
        parser.error(f"--driver {flags.driver} starts its own server and takes no address")

    def tell(text: str) -> None:
        if not flags.json:
            print(text, flush=True)  # noqa: T201 - it is a command

    tell(f"{driver.versions()}\n{head()}")
    outcomes = []
    try:
        driver.start()
        for promise in chosen:
            outcomes.append(judged(promise, driver, flags.repeat))
            tell(line(outcomes[-1]))
    except (RefusedError, OSError, ValueError) as error:
        parser.error(f"the server is not there: {error}")
    finally:
        driver.stop()
    if flags.json:
        print(json.dumps(as_json(driver.versions(), outcomes), indent=1))  # noqa: T201 - it is a command
    verdicts = {outcome.verdict for outcome in outcomes}
    return 1 if "broken" in verdicts else 2 if "no verdict" in verdicts else 0


def judged(promise: Promise, driver: Driver, times: int) -> Outcome:
    """Try it this often, or until it is broken. That outcome, else one without a verdict, else the last."""
    outcomes: list[Outcome] = []
    while len(outcomes) < times:
        outcomes.append(promise.judge(driver))
        if outcomes[-1].verdict == "broken":
            return outcomes[-1]
    return next((one for one in outcomes if one.verdict == "no verdict"), outcomes[-1])


if __name__ == "__main__":
    sys.exit(main())
