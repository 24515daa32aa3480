"""How the cost of a batch grows with its bytes, rows, row length, resident rows, clients: tables and a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from batch_goals import GRPC, OURS, fastest_queue, queue_rounds, queue_worker, transfer_queue_python
from batches import Spec, build
from data_plane import checked_rounds
from dataplane_client import DataPlaneClient, connect
from floor import Floor
from report import Session, summary, table
from servers import server_process
from timing import Round, Series, Steps, alternate, total
from workers import OURS as OUR_PYTHON
from workers import Worker, worker

_ROUNDS = 7
_TOKENS = 1_000_000
_CLIENT_ROWS, _CLIENT_S = 64, 1.5
_COLUMNS = 3
_COLOURS = ("#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#ff7f0e")


@dataclass(frozen=True)
class Growth:
    """Lines over one quantity, all with the same x. Points are medians with ranges, in the unit of y."""

    name: str
    x: str
    y: str
    at: tuple[float, ...]
    lines: Mapping[str, Sequence[Series]]


def measure(session: Session, resident: Mapping[int, Steps], chart: Path, title: str) -> None:
    """Measure all growths, show and draw them. resident: measurements over resident rows."""
    found = [*_of_batches(session), _over_resident(resident), _over_clients(session)]
    for growth in found:
        _show(session, growth)
    _draw(found, title, chart)
    session.console.print(f"chart: {chart}")


# -- one client --------------------------------------------------------------------------------------------------------


def _of_batches(session: Session) -> Iterator[Growth]:
    python, quick = transfer_queue_python(session), session.quick
    tokens = (256, 1_024, 4_096) if quick else (64, 256, 1_024, 4_096, 16_384, 65_536)
    rows = (1, 32, 512) if quick else (1, 8, 64, 512, 4_096)
    lengths = (1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000)
    by_bytes = [_uniform(64, longest) for longest in tokens]
    sizes = tuple(build(spec).jagged_bytes / 1e6 for spec in by_bytes)
    by_length = [_uniform(_TOKENS * 4 // 3 // longest, longest) for longest in lengths]
    with ExitStack() as stack:
        server = stack.enter_context(server_process("6GiB"))
        clients = {
            OURS: stack.enter_context(connect(server.unix)),
            GRPC: stack.enter_context(connect(server.unix, transport="grpc")),
        }
        queue = stack.enter_context(queue_worker(python))
        for name, x, at, specs in (
            ("bytes", "MB of 64 rows without padding", sizes, by_bytes),
            ("rows", "rows of 128 to 256 tokens", rows, [_uniform(count, 256) for count in rows]),
            ("row length", "tokens of the longest row, 1 million in all", lengths, by_length),
        ):
            with session.phase(f"growth with {name}"):
                points = [_point(session, spec, clients, queue) for spec in specs]
            lines = {system: [point[system] for point in points] for system in points[0]}
            yield Growth(name, x, "put + read, ms", at, lines)


def _uniform(rows: int, longest: int) -> Spec:
    return Spec(f"{rows}x{longest}", "rollout", rows, longest // 2, longest)


def _point(
    session: Session, spec: Spec, clients: Mapping[str, DataPlaneClient], queue: Worker | None
) -> Mapping[str, Series]:
    batch = build(spec)
    ours = {name: checked_rounds(client, batch) for name, client in clients.items()}
    with Floor(batch.jagged_bytes, batch.padded_bytes) as floor:
        theirs = queue_rounds(session, queue, spec, ("jagged", "padded"))
        systems: dict[str, Round] = {"floor": floor, **ours, **theirs}
        measured = alternate(systems, session.rounds(_ROUNDS), session.warmups)
    for rounds in ours.values():
        rounds.close()
    shown = {name: measured[name] for name in ("floor", *ours)}
    if (fastest := fastest_queue(measured)) is not None:
        shown["TransferQueue"] = fastest
    return {name: _in_ms(total(steps)) for name, steps in shown.items()}


def _in_ms(series: Series) -> Series:
    return Series(tuple(value * 1e3 for value in series.values))


def _over_resident(resident: Mapping[int, Steps]) -> Growth:
    steps = next(iter(resident.values()))
    lines = {step: [_in_ms(resident[rows][step]) for rows in resident] for step in steps}
    return Growth("rows resident", "rows resident", "one call, ms", tuple(resident), lines)


# -- several clients ---------------------------------------------------------------------------------------------------


def _over_clients(session: Session) -> Growth:
    counts = (1, 2, 4) if session.quick else (1, 2, 4, 8)
    lines: dict[str, Sequence[Series]] = {}
    with session.phase("growth with clients"), server_process() as server, ExitStack() as stack:
        workers = [stack.enter_context(worker(OUR_PYTHON, "data_plane", number)) for number in range(max(counts))]
        for name, transport in ((OURS, "shm"), (GRPC, "grpc")):
            sizes = [
                each.call(
                    "prepare",
                    partition=f"client {number}, {transport}",
                    spec=Spec("clients", "rollout", _CLIENT_ROWS, 512, 4096),
                    address=server.unix,
                    transport=transport,
                )
                for number, each in enumerate(workers)
            ]
            lines[name] = [_together(session, workers[:count], transport, 2 * sizes[0]) for count in counts]
    x = f"client processes, {_CLIENT_ROWS} rows of 512 to 4096 tokens each"
    return Growth("clients", x, "put + read of all, GB/s", tuple(counts), lines)


def _together(session: Session, workers: Sequence[Worker], transport: str, round_bytes: int) -> Series:
    """Throughput of all these clients together, in GB/s, by round."""
    rates = []
    for _ in range(1 + session.rounds(3)):
        for number, each in enumerate(workers):
            seconds = _CLIENT_S / (3 if session.quick else 1)
            each.begin("run", partition=f"client {number}, {transport}", seconds=seconds)
        done = [each.finish() for each in workers]
        rates.append(sum(rounds * round_bytes / seconds for rounds, seconds in done) / 1e9)
    return Series(tuple(rates[1:]))  # the first warms up


# -- shown -------------------------------------------------------------------------------------------------------------


def _show(session: Session, growth: Growth) -> None:
    session.figures[f"growth.{growth.name}"] = {
        "x": list(growth.at),
        "unit": growth.y,
        **{name: [summary(series) for series in line] for name, line in growth.lines.items()},
    }
    rows = [
        [
            _short(x),
            *(f"{s.median:.3g} ({s.low:.3g}..{s.high:.3g})" for s in (line[n] for line in growth.lines.values())),
        ]
        for n, x in enumerate(growth.at)
    ]
    title = f"growth with {growth.name}: {growth.y}, median (min..max)"
    session.console.print(table(title, (growth.x, *growth.lines), rows))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _draw(growths: Sequence[Growth], title: str, path: Path) -> None:
    """Write a PNG file: a panel each, logarithmic axes, medians with ranges, the floor dashed."""
    mpl.use("Agg")
    rows = math.ceil(len(growths) / _COLUMNS)
    figure = Figure(figsize=(5.2 * _COLUMNS, 4.2 * rows), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(rows, _COLUMNS, squeeze=False).flatten().tolist()
    for panel in panels[len(growths) :]:
        panel.set_axis_off()
    for panel, growth in zip(panels, growths, strict=False):
        _draw_panel(panel, growth)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)


def _draw_panel(panel: Axes, growth: Growth) -> None:
    colours = iter(_COLOURS)
    for name, line in growth.lines.items():
        colour, style = ("#555555", "--") if name == "floor" else (next(colours), "-")
        medians = [series.median for series in line]
        panel.plot(growth.at, medians, style, color=colour, marker="o", markersize=3, label=name)
        least, most = [series.low for series in line], [series.high for series in line]
        panel.fill_between(growth.at, least, most, color=colour, alpha=0.15, linewidth=0)
    panel.set_xscale("log")
    panel.set_xticks(growth.at, [_short(x) for x in growth.at])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(growth.x)
    panel.set_ylabel(growth.y)
    panel.set_title(f"growth with {growth.name}", fontsize=10)
    panel.grid(True, which="both", alpha=0.2)
    panel.legend(fontsize=8)
