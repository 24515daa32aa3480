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
from collections.abc import Iterator, Mapping, Sequence
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

_Limits = Mapping[tuple[int, int], float]
"""Rows a second that fill a coordinator, by the sizes of puts and claims."""


def main() -> None:
    description = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser("python -m benchmarks.scaling", **description)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("measure", "simulate"):
        command = commands.add_parser(name)
        command.add_argument("--inputs", type=Path, default=_INPUTS, help="file of measured times")
    commands.choices["measure"].add_argument("--repeats", type=int, default=5, help="the lowest of these is kept")
    commands.choices["measure"].add_argument("--rounds", type=int, default=20, help="samples of each")
    commands.choices["simulate"].add_argument("--chart", type=Path, default=_CHART, help="file for the picture")
    options = parser.parse_args()
    if options.command == "measure":
        _measure(options.inputs, options.repeats, options.rounds)
    else:
        _simulate(json.loads(options.inputs.read_text()), options.chart)


def _measure(inputs: Path, repeats: int, rounds: int) -> None:
    from benchmarks.scaling.measure import measure

    lists = re.compile(r"\[\s+([^][{}]*?)\s+\]")  # in one line each
    text = json.dumps(measure(repeats, rounds), indent=1)
    inputs.write_text(lists.sub(lambda numbers: f"[{' '.join(numbers[1].split())}]", text) + "\n")
    print(f"inputs: {inputs}")


def _simulate(inputs: dict[str, Any], chart: Path) -> None:
    console = Console(width=None if Console().is_terminal else 140)
    console.print(", ".join(f"{name} {fact}" for name, fact in inputs["machine"].items()), highlight=False)
    times = ServiceTimes.of_nodes(inputs)
    limits = {(put, claim): saturation(Workload(1, put, claim), times) for put in _PUTS for claim in _CLAIMS}
    for title, headings, rows in (
        *_calls(inputs["calls_us"]),
        _check(inputs["check"], times),
        _saturation(times, limits),
        _nodes(times),
        _many(times, limits),
        _next_limits(inputs, times),
    ):
        table = Table(title=title, title_justify="left", box=None)
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table, "")
    _draw(times, limits, chart)
    console.print(f"chart: {chart}")


# -- tables: title, headings, rows -------------------------------------------------------------------------------------

_Rows = list[tuple[str, ...]]


def _calls(calls: dict[str, list[float]]) -> Iterator[tuple[str, Sequence[str], _Rows]]:
    """Measured: what one call takes, and how many of them fill the loop."""
    sizes = sorted({int(name.split()[2]) for name in calls})
    for transport in ("node", "grpc"):
        rows = []
        for operation in _OPERATIONS:
            names = [f"{transport} {operation} {size}" for size in sizes]
            if names[0] in calls:
                means = [fmean(calls[name]) for name in names]
                rows.append((operation, *(f"{mean:.0f}" for mean in means), f"{1e6 / means[-1]:,.0f}"))
        title = f"{transport}: microseconds of the event loop for a call, by rows"
        yield title, ["call", *map(str, sizes), f"calls/s of {sizes[-1]}"], rows


def _check(check: dict[str, Any], times: ServiceTimes) -> tuple[str, Sequence[str], _Rows]:
    """The workload that was run in real time, simulated."""
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
    return title, ("", "measured", "simulated", "quotient"), rows


def _saturation(times: ServiceTimes, limits: _Limits) -> tuple[str, Sequence[str], _Rows]:
    """Rows a second at which 1 % of the calls wait for 100 ms, by batch size."""
    rows = []
    for (put, claim), limit in limits.items():
        report, half = (simulate(Workload(max(limit, 100.0) / part, put, claim), times) for part in (1, 2))
        load = (f"{report.utilisation:.2f}", f"{report.calls_per_s:,.0f}")
        waits = (_ms(one.wait_s(percent)) for one in (report, half) for percent in (50, 99))
        cost = f"{row_costs(Workload(1, put, claim), times) * 1e6:.1f}"
        rows.append((f"puts of {put}, claims of {claim}", cost, f"{limit:,.0f}", *load, *waits))
    title = "one coordinator, 1,000 nodes, 1,064 sessions, 64 ranks: where it is full, or 1 % of calls wait 100 ms"
    headings = ("", "us/row", "rows/s", "busy", "calls/s", "p50 ms", "p99 ms", "p50 at half", "p99 at half")
    return title, headings, rows


def _nodes(times: ServiceTimes) -> tuple[str, Sequence[str], _Rows]:
    """What is left for calls, by the number of nodes."""
    rows = []
    for nodes in (10, 100, 300, 1_000, 3_000):
        workload = Workload(1, 64, 64, nodes=nodes, sessions=nodes + 64)
        rows.append((f"{nodes:,}", f"{needed(workload, times):.2f}", f"{saturation(workload, times):,.0f}"))
    return "by nodes, one session each: puts and claims of 64", ("nodes", "busy without rows", "rows/s"), rows


def _many(times: ServiceTimes, limits: _Limits) -> tuple[str, Sequence[str], _Rows]:
    """Coordinators for 100,000 rows a second."""
    rows = []
    for (put, claim), limit in limits.items():
        number = coordinators_for(_TARGET_ROWS_PER_S, limit)
        cells = ("more than 64", "", "", "")
        if number is not None:
            busiest = _TARGET_ROWS_PER_S * busiest_share(number)
            report = simulate(Workload(busiest, put, claim), times)
            cells = (str(number), f"{busiest:,.0f}", f"{report.utilisation:.2f}", _ms(report.wait_s(99)))
        rows.append((f"puts of {put}, claims of {claim}", *cells))
    headings = ("", "coordinators", "busiest: rows/s", "busy", "p99 ms")
    return "100,000 rows/s in 64 partitions, spread by a hash of their names", headings, rows


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _next_limits(inputs: dict[str, Any], times: ServiceTimes) -> tuple[str, Sequence[str], _Rows]:
    """What else is full at 1,000 nodes and 100,000 rows of 98 kB a second, by arithmetic."""
    put, claim = 16, 256
    fetch = {int(size): found for size, found in inputs["fetch"].items()}
    taker_us = fetch[min(fetch)]["taker_us"]
    gb_per_s = _TARGET_ROWS_PER_S * _TARGET_ROW_BYTES / 1e9
    node_gb_per_s = max(fetch) / fetch[max(fetch)]["seconds"] / 1e9
    fetches_per_s = _TARGET_ROWS_PER_S / put
    changes_per_s = _TARGET_ROWS_PER_S * (1 / put + 5 / claim)
    beat_s, connection = interpolated(times.beat, 1_000), inputs["connection_bytes"]
    flow = f"{gb_per_s:.1f} GB/s; one fetch at a time {node_gb_per_s:.2f} GB/s a node"
    fetched = f"{fetches_per_s:,.0f}/s; {taker_us:.0f} us of the taker's CPU"
    admitted = f"{3_000 * times.heartbeat:.2f} of the loop; 10,000 sessions are the most"
    held = f"{24_000 * connection / 1e6:.0f} MB and 24,000 descriptors for 8,000 clients"
    rows = [
        ("network into trainers", flow, f"{gb_per_s / node_gb_per_s:.0f} nodes"),
        ("fetches, one for each put of 16", fetched, f"{fetches_per_s * taker_us / 1e6:.1f} cores of takers"),
        (
            "beats of 1,000 nodes",
            f"{1_000 / BEAT_S:,.0f}/s of {beat_s * 1e6:.0f} us",
            f"{beat_s * 1_000 / BEAT_S:.2f} of each coordinator's loop",
        ),
        ("heartbeats of 10,000 sessions", f"3,000/s of {times.heartbeat * 1e6:.0f} us", admitted),
        ("connections of clients", f"{connection / 1e3:.1f} kB each, 3 for each client", held),
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
    return title, ("what", "measured or set", "comes to"), rows


def _draw(times: ServiceTimes, limits: _Limits, path: Path) -> None:
    """The 99th percentile of waits over rows a second, a line for each size of put."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("Agg")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for put in _PUTS:
        rates = [
            limits[put, 64] * share for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1)
        ]
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
