"""Measure the run time of the command `dataplane`, as whole processes, beside the floor of Python itself.

    .venv/bin/python benchmarks/cli_start.py

Starts a server with a partition of two tasks, then runs each command ten times, in turns. Prints the elapsed time
(median and least), the processor time of the process (median), and the ratio to the floor, `python -c pass` (median of
the rounds). Only the ratio is comparable between machines, or between busy and idle hours of one machine. The goal of
300 ms is for the median on an idle machine; if Python starts in 25 ms, it is twelve times the floor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dataplane_client import connect
from dataplane_server.testing import running_server
from timing import Round, alternate, seconds

ROUNDS = 10
GOAL_S = 0.3
DATAPLANE = str(Path(sys.executable).parent / "dataplane")

FLOOR = "python -c pass"
COMMANDS = {
    FLOOR: [sys.executable, "-c", "pass"],
    "dataplane --help": [DATAPLANE, "--help"],
    "dataplane status": [DATAPLANE, "status"],
    "dataplane status -o json": [DATAPLANE, "status", "-o", "json"],
    "dataplane doctor": [DATAPLANE, "doctor"],
}


def process(command: Sequence[str], address: str) -> Round:
    """Make a round that runs a command to its end."""

    def measured() -> Mapping[str, float]:
        before = os.times()
        environment = {**os.environ, "DATAPLANE_SERVER": address}
        wall_s, _ = seconds(lambda: subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True))
        after = os.times()
        used_s = after.children_user + after.children_system - before.children_user - before.children_system
        return {"wall": wall_s, "cpu": used_s}

    return measured


def main() -> None:
    """Print a line for each command."""
    with running_server() as address, connect(address) as client:
        client.register_partition("rollouts", ["input_ids", "prev_logprobs"], 0, ["prev_lp", "train"])
        systems = {name: process(command, address) for name, command in COMMANDS.items()}
        measured = alternate(systems, ROUNDS, warmups=1)
    print(f"{'':26} {'median':>8} {'least':>8} {'processor':>10} {'floors':>7}")
    for name, steps in measured.items():
        wall, cpu, floors = steps["wall"], steps["cpu"], steps["wall"].over(measured[FLOOR]["wall"])
        times = f"{wall.median * 1e3:5.0f} ms {wall.low * 1e3:5.0f} ms {cpu.median * 1e3:7.0f} ms"
        print(f"{name:26} {times} {floors.median:7.1f}")
    reached = all(measured[name]["wall"].median < GOAL_S for name in ("dataplane --help", "dataplane status"))
    print(f"help and status under {GOAL_S * 1e3:.0f} ms: {'yes' if reached else 'no'}")


if __name__ == "__main__":
    main()
