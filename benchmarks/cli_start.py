"""The run time of the command `dataplane`, as whole processes, beside the floor of Python itself.

Starts a server with a partition of two tasks, then runs each command ten times, in turns: the elapsed time, and the
processor time of the process. Only the ratio to the floor, `python -c pass`, is comparable between machines, or between
busy and idle hours of one machine. The goal of 300 ms is for the median on an idle machine; if Python starts in 25 ms,
it is twelve times the floor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from dataplane_client import connect
from dataplane_server.testing import running_server
from report import Session, compare, in_ms
from timing import alternate, timed

GOAL_S = 0.3
DATAPLANE = str(Path(sys.executable).parent / "dataplane")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "dataplane --help": [DATAPLANE, "--help"],
    "dataplane status": [DATAPLANE, "status"],
    "dataplane status -o json": [DATAPLANE, "status", "-o", "json"],
    "dataplane doctor": [DATAPLANE, "doctor"],
}


def measure(session: Session) -> None:
    with running_server() as address, connect(address) as client:
        client.register_partition("rollouts", ["input_ids", "prev_logprobs"], 0, ["prev_lp", "train"])
        systems = {name: partial(run, command, address) for name, command in COMMANDS.items()}
        measured = alternate(systems, session.rounds(10), warmups=1)
    compare(session.console, "commands as processes", measured)
    for name in ("dataplane --help", "dataplane status"):
        took = measured[name]["elapsed"]
        session.goal(f"{name} under {GOAL_S * 1e3:.0f} ms", f"{in_ms(took)} ms", took.median < GOAL_S, took.median)


def run(command: Sequence[str], address: str) -> Mapping[str, float]:
    """Run a command to its end."""
    before, environment = os.times(), {**os.environ, "DATAPLANE_SERVER": address}
    found = timed(elapsed=lambda: subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True))
    after = os.times()
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    return {**found, "processor": max(used_s, 1e-3)}
