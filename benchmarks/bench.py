"""Measure the data plane beside the floor of copying and beside its peers, and check its goals.

    python benchmarks/bench.py [--quick] [--only PART ...] [--json PATH] [--chart PATH]

Creates an environment for each peer at its first use, and starts real processes. Prints tables of medians with ranges,
the goals last; writes the figures as JSON and the growth as a picture. Takes about 13 minutes on two cores, 5
with --quick, and 4 more to install the peers the first time. Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

import batch_goals
import chart
import flight_goals
import growth
import machine
import reader_goals
import resident_goals
import server_goals
import small_call_goals
from exchanges import part as exchanges
from session import Session, table

_ROOT = Path(__file__).resolve().parents[1]
_WIDTH = 160  # columns, if the output is a file
_RUNS = _ROOT / "runs" / "bench"
_PARTS = ("batches", "resident", "readers", "flight", "calls", "exchanges", "server", "growth")
_HOLDS = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "[yellow]not measured[/yellow]"}


def main() -> None:
    options = _options()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    facts = machine.describe()
    console.print(", ".join(f"{name} {fact}" for name, fact in facts.items()), highlight=False, soft_wrap=True)
    for path in (_RUNS / "any", options.json, options.chart):
        path.parent.mkdir(parents=True, exist_ok=True)
    session = Session(console, options.quick, _RUNS, options.torch)
    growths = _measure(session, options.only or list(_PARTS))
    if growths:
        title = ", ".join(facts[name] for name in ("date", "processor", "cores")) + " cores"
        chart.draw(growths, title, options.chart)
        console.print(f"chart: {options.chart}")
    goals = [(goal.name, goal.measured, _HOLDS[goal.holds]) for goal in session.goals]
    console.print(table("goals", ("goal", "measured", "holds"), goals, text_columns=3))
    found = {"machine": facts, "quick": options.quick, "goals": [asdict(goal) for goal in session.goals]}
    options.json.write_text(json.dumps({**found, "figures": session.figures}, indent=2))
    console.print(f"figures: {options.json}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller growth")
    parser.add_argument("--only", nargs="+", choices=_PARTS, help="measure these parts only")
    parser.add_argument("--json", type=Path, default=_RUNS / "bench.json", help="file for the figures")
    parser.add_argument("--chart", type=Path, default=_RUNS / "growth.png", help="file for the picture")
    parser.add_argument("--torch", default="torch==2.13.0", help="build of torch for the peers")
    return parser.parse_args()


def _measure(session: Session, parts: list[str]) -> list[growth.Growth]:
    """Run the parts in a fixed order. Returns the growths, if selected."""
    if "batches" in parts:
        batch_goals.measure(session)
    resident = resident_goals.measure(session) if {"resident", "growth"} & set(parts) else None
    if "readers" in parts:
        reader_goals.measure(session)
    if "flight" in parts:
        flight_goals.measure(session)
    if "calls" in parts:
        small_call_goals.measure(session)
    if "exchanges" in parts:
        exchanges.measure(session)
    if "server" in parts:
        server_goals.measure(session)
    return growth.measure(session, resident) if "growth" in parts else []


if __name__ == "__main__":
    main()
