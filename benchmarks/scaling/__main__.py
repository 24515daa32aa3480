"""How far one coordinator goes, how many are needed beyond it, and where the next limit lies.

    python -m benchmarks.scaling measure [--repeats N] [--rounds N] [--inputs PATH]
    python -m benchmarks.scaling simulate [--inputs PATH] [--chart PATH]

`measure` starts a local Ray cluster with a data plane (see measure.py), writes the times to
benchmarks/scaling/inputs.json, and takes some four minutes. `simulate` needs that file alone: it prints what a
simulation makes of it (see simulation.py) and draws docs/images/scaling.png, in some two minutes. Measure on an
idle machine.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.scaling.simulation import (
    BEAT_S,
    TOO_LATE_S,
    ServiceTimes,
    Workload,
    busiest_share,
    coordinators_for,
    interpolated,
    needed,
    quantile,
    row_costs,
    saturation,
    simulate,
)
from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).resolve().parents[2]
_INPUTS = _ROOT / "benchmarks" / "scaling" / "inputs.json"
_CHART = _ROOT / "docs" / "images" / "scaling.png"
_PUTS, _CLAIMS = (1, 16, 64, 256), (8, 64, 256)
_TARGET_ROWS_PER_S = 100_000.0
_TARGET_ROW_BYTES = 24 * 4_096
_OPERATIONS = ("put", "finish", "claim", "read", "commit", "plain_commit", "release", "clear")


def main() -> None:
    options = _options()
    console = Console(width=None if Console().is_terminal else 140)
    if options.command == "measure":
        from benchmarks.scaling.measure import measure

        found = measure(options.repeats, options.rounds)
        lists = re.compile(r"\[\s+([^][{}]*?)\s+\]")  # in one line each
        text = lists.sub(lambda numbers: f"[{' '.join(numbers[1].split())}]", json.dumps(found, indent=1))
        options.inputs.write_text(text + "\n")
        console.print(f"inputs: {options.inputs}")
        return
    inputs = json.loads(options.inputs.read_text())
    console.print(", ".join(f"{name} {fact}" for name, fact in inputs["machine"].items()), highlight=False)
    times = ServiceTimes.of_relays(inputs)
    _show_calls(console, inputs)
    _show_check(console, inputs, times)
    limits = _show_saturation(console, times)
    _show_nodes(console, times)
    _show_many(console, times, limits)
    _show_next_limits(console, inputs, times)
    _draw(times, options.chart)
    console.print(f"chart: {options.chart}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("measure", "simulate"):
        command = commands.add_parser(name)
        command.add_argument("--inputs", type=Path, default=_INPUTS, help="file of measured times")
    commands.choices["measure"].add_argument("--repeats", type=int, default=5, help="the lowest of these is kept")
    commands.choices["measure"].add_argument("--rounds", type=int, default=20, help="samples of each")
    commands.choices["simulate"].add_argument("--chart", type=Path, default=_CHART, help="file for the picture")
    return parser.parse_args()


# -- tables ------------------------------------------------------------------------------------------------------------


def _print(console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", box=None)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table, "")


def _show_calls(console: Console, inputs: dict[str, Any]) -> None:
    """Measured: what one call takes, and how many of them fill the loop."""
    calls = inputs["calls_us"]
    sizes = sorted({int(name.split()[2]) for name in calls})
    for transport in ("relay", "grpc"):
        rows = []
        for operation in _OPERATIONS:
            names = [f"{transport} {operation} {size}" for size in sizes]
            if names[0] in calls:
                means = [fmean(calls[name]) for name in names]
                rows.append([operation, *(f"{mean:.0f}" for mean in means), f"{1e6 / means[-1]:,.0f}"])
        title = f"{transport}: microseconds of the event loop for a call, by rows"
        _print(console, title, ["call", *map(str, sizes), f"calls/s of {sizes[-1]}"], rows)


def _show_check(console: Console, inputs: dict[str, Any], times: ServiceTimes) -> None:
    """The workload that was run in real time, simulated."""
    check = inputs["check"]
    workload, real, wire_s = Workload(**check["workload"]), check["measured"], check["wire_s"]
    report = simulate(workload, times)
    simulated = {
        "utilisation": report.utilisation,
        "calls_per_s": report.calls_per_s,
        "p50_s": quantile(report.answers, 50) + wire_s,
        "p99_s": quantile(report.answers, 99) + wire_s,
    }
    title = f"check: {workload.rows_per_s:,.0f} rows/s, puts of {workload.put_rows}, claims of {workload.claim_rows}"
    rows = [
        (name, f"{real[name]:.4g}", f"{value:.4g}", f"{real[name] / value:.2f}") for name, value in simulated.items()
    ]
    _print(console, title, ("", "measured", "simulated", "quotient"), rows)


def _show_saturation(console: Console, times: ServiceTimes) -> dict[tuple[int, int], float]:
    """Rows a second at which 1 % of the calls wait for 100 ms, by batch size. Returns them."""
    found = {(put, claim): saturation(Workload(1, put, claim), times) for put in _PUTS for claim in _CLAIMS}
    rows = []
    for (put, claim), limit in found.items():
        report = simulate(Workload(max(limit, 100.0), put, claim), times)
        half = simulate(Workload(max(limit, 100.0) / 2, put, claim), times)
        cells = (f"{row_costs(Workload(1, put, claim), times) * 1e6:.1f}", f"{limit:,.0f}")
        load = (
            f"{report.utilisation:.2f}",
            f"{report.calls_per_s:,.0f}",
            _ms(report.wait_s(50)),
            _ms(report.wait_s(99)),
        )
        rows.append([f"puts of {put}, claims of {claim}", *cells, *load, _ms(half.wait_s(50)), _ms(half.wait_s(99))])
    headings = ("", "us/row", "rows/s", "busy", "calls/s", "p50 ms", "p99 ms", "p50 at half", "p99 at half")
    _print(
        console,
        "one coordinator, 1,000 nodes, 1,064 sessions, 64 ranks: where it is full, or 1 % of calls wait 100 ms",
        headings,
        rows,
    )
    return found


def _show_nodes(console: Console, times: ServiceTimes) -> None:
    """What is left for calls, by the number of nodes."""
    rows = []
    for nodes in (10, 100, 300, 1_000, 3_000):
        workload = Workload(1, 64, 64, nodes=nodes, sessions=nodes + 64)
        rows.append([f"{nodes:,}", f"{needed(workload, times):.2f}", f"{saturation(workload, times):,.0f}"])
    title = "by nodes, one session each: puts and claims of 64"
    _print(console, title, ("nodes", "busy without rows", "rows/s"), rows)


def _show_many(console: Console, times: ServiceTimes, limits: dict[tuple[int, int], float]) -> None:
    """Coordinators for 100,000 rows a second."""
    rows = []
    for (put, claim), limit in limits.items():
        number = coordinators_for(_TARGET_ROWS_PER_S, limit)
        cells = ["more than 64", "", ""]
        if number is not None:
            busiest = _TARGET_ROWS_PER_S * busiest_share(number)
            report = simulate(Workload(busiest, put, claim), times)
            cells = [str(number), f"{busiest:,.0f}", f"{report.utilisation:.2f}", _ms(report.wait_s(99))]
        rows.append([f"puts of {put}, claims of {claim}", *cells])
    headings = ("", "coordinators", "busiest: rows/s", "busy", "p99 ms")
    _print(console, "100,000 rows/s in 64 partitions, spread by a hash of their names", headings, rows)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


# -- beyond the event loop ---------------------------------------------------------------------------------------------


def _show_next_limits(console: Console, inputs: dict[str, Any], times: ServiceTimes) -> None:
    """What else is full at 1,000 nodes and 100,000 rows of 98 kB a second, by arithmetic."""
    put, claim = 16, 256
    fetch = {int(size): found for size, found in inputs["fetch"].items()}
    small, large = fetch[min(fetch)], fetch[max(fetch)]
    gb_per_s = _TARGET_ROWS_PER_S * _TARGET_ROW_BYTES / 1e9
    node_gb_per_s = max(fetch) / large["seconds"] / 1e9
    fetches_per_s = _TARGET_ROWS_PER_S / put
    calls_per_s = _TARGET_ROWS_PER_S * (2 / put + 8 / claim)
    changes_per_s = _TARGET_ROWS_PER_S * (1 / put + 5 / claim)
    beats = interpolated(times.beat, 1_000) * 1_000 / BEAT_S
    rows = [
        (
            "network into trainers",
            f"{gb_per_s:.1f} GB/s; one fetch at a time {node_gb_per_s:.2f} GB/s a node",
            f"{gb_per_s / node_gb_per_s:.0f} nodes",
        ),
        (
            "fetches, one for each put of 16",
            f"{fetches_per_s:,.0f}/s; {small['taker_us']:.0f} us of the taker's CPU",
            f"{fetches_per_s * small['taker_us'] / 1e6:.1f} cores of takers",
        ),
        (
            "beats of 1,000 nodes",
            f"{1_000 / BEAT_S:,.0f}/s of {interpolated(times.beat, 1_000) * 1e6:.0f} us",
            f"{beats:.2f} of each coordinator's loop",
        ),
        (
            "heartbeats of 10,000 sessions",
            f"3,000/s of {times.heartbeat * 1e6:.0f} us",
            f"{3_000 * times.heartbeat:.2f} of the loop; 10,000 sessions are the most",
        ),
        (
            "actor of a node with 8 ranks of 1,000",
            f"{inputs['gateway_us']:.0f} us for a call that it relays",
            f"{calls_per_s * 8 / 1_000 * inputs['gateway_us'] / 1e6:.2f} of a core",
        ),
        (
            "connections of clients",
            f"{inputs['relay_connection_bytes'] / 1e3:.1f} kB each, 3 for each client",
            f"{24_000 * inputs['relay_connection_bytes'] / 1e6:.0f} MB and 24,000 descriptors for 8,000 clients",
        ),
        ("resident rows", "4,000,000 by default for each coordinator", f"{4e6 / _TARGET_ROWS_PER_S:.0f} s of rows"),
        (
            "history",
            "262,144 rows of calls, 6 calls in the life of a row",
            f"{262_144 / 6 / _TARGET_ROWS_PER_S:.1f} s of rows",
        ),
        ("answers for repeated calls", f"16,384 of {changes_per_s:,.0f}/s", f"{16_384 / changes_per_s:.1f} s"),
    ]
    title = (
        "100,000 rows/s of 98 kB on 1,000 nodes, puts of 16, claims of 256: other limits, if one coordinator had all"
    )
    _print(console, title, ("what", "measured or set", "comes to"), rows)


def _draw(times: ServiceTimes, path: Path) -> None:
    """The 99th percentile of waits over rows a second, a line for each size of put."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("Agg")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for put in _PUTS:
        limit = saturation(Workload(1, put, 64), times)
        rates = [limit * share for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1)]
        waits = [1e3 * simulate(Workload(rate, put, 64), times).wait_s(99) for rate in rates]
        axes.plot(rates, waits, marker="o", markersize=3, label=f"puts of {put}")
    axes.axhline(1e3 * TOO_LATE_S, color="#555555", linestyle="--", label="saturated")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows a second at one coordinator")
    axes.set_ylabel("99th percentile of waits, ms")
    axes.set_title("simulated: 1,000 nodes, 64 ranks, claims of 64", fontsize=10)
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
