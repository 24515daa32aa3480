"""Measure the data plane beside the floor of copying and beside its peers, and check its goals.

    python benchmarks/bench.py [--quick] [--only PART ...] [--volume DIR] [--json PATH] [--chart PATH]

Creates an environment for each peer at its first use, and starts real processes. Prints tables, the goals last; writes
the figures as JSON and the growth as a picture. Each part is a module of this folder that says what it measures. One
that fails is shown and named at the end. All of them take about 20 minutes on two cores, and 4 more to install the
peers the first time. Measure on an idle machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import backpressure
import batch_goals
import checkpoint_pauses
import claim_latency
import claim_wakeups
import cli_start
import digest_cost
import durability_cost
import exchanges
import flight_goals
import growth
import machine
import observe_cost
import put_once
import reader_goals
import resident_goals
import row_kernels
import scrape_cost
import selective_claims
import server_goals
import session_cost
import small_calls
from report import Session, arguments, begin, table
from workers import LOGS

_PARTS = {
    "claims": claim_latency.measure,  # first, since it forks
    "wakeups": claim_wakeups.measure,
    "selective_claims": selective_claims.measure,
    "sessions": session_cost.measure,
    "scrape": scrape_cost.measure,
    "observe": observe_cost.measure,
    "put_once": put_once.measure,
    "digests": digest_cost.measure,
    "durability": durability_cost.measure,
    "checkpoints": checkpoint_pauses.measure,
    "backpressure": backpressure.measure,
    "cli": cli_start.measure,
    "kernels": row_kernels.measure,
    "batches": batch_goals.measure,
    "resident": resident_goals.measure,
    "readers": reader_goals.measure,
    "flight": flight_goals.measure,
    "calls": small_calls.measure,
    "exchanges": exchanges.measure,
    "server": server_goals.measure,
}
_HOLDS = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "[yellow]not measured[/yellow]"}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer rows")
    parser.add_argument("--only", nargs="+", choices=(*_PARTS, "growth"), help="measure these parts only")
    parser.add_argument("--volume", default="/dev/shm", help="folder for the data of servers")  # noqa: S108
    parser.add_argument("--json", type=Path, default=LOGS / "bench.json", help="file for the figures")
    parser.add_argument("--chart", type=Path, default=LOGS / "growth.png", help="file for the picture")
    parser.add_argument("--torch", default="torch==2.13.0", help="build of torch for the peers")
    options = parser.parse_args()
    for path in (options.json, options.chart):
        path.parent.mkdir(parents=True, exist_ok=True)
    session, facts = Session(begin(), options.quick, options.torch, options.volume), machine.describe()
    wanted = options.only or [*_PARTS, "growth"]
    failed: list[str] = []
    found: dict[str, Any] = {}

    def growth_of(session: Session) -> None:
        title = f"{facts['date']}, {facts['processor']}, {facts['cores']} cores"
        growth.measure(session, found.get("resident") or resident_goals.measure(session), options.chart, title)

    for name, part in {**_PARTS, "growth": growth_of}.items():
        if name in wanted:
            found[name] = _measured(name, part, session, failed)
    goals = [(goal.name, goal.measured, _HOLDS[goal.holds]) for goal in session.goals]
    session.console.print(table("goals", ("goal", "measured", "holds"), goals, text_columns=3))
    kept = {"machine": facts, "quick": options.quick, "goals": [asdict(goal) for goal in session.goals]}
    options.json.write_text(json.dumps({**kept, "figures": session.figures}, indent=2))
    session.console.print(f"figures: {options.json}")
    if failed:
        sys.exit(f"these parts failed, see above: {', '.join(failed)}")


def _measured(name: str, part: Callable[[Session], Any], session: Session, failed: list[str]) -> Any:
    """What a part returns. If it fails, that is shown, and the figures of the others are kept."""
    try:
        return part(session)
    except Exception:  # noqa: BLE001
        session.console.print_exception()
        failed.append(name)
        return None


if __name__ == "__main__":
    main()
