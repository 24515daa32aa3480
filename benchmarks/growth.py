"""Measure how the cost of a batch grows with its bytes, rows, row length, resident rows, and clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from batch_goals import OURS, both, fastest_queue, queue_rounds, queue_worker, transfer_queue_python
from batches import Spec, build
from data_plane import PaddedRounds, connect_over_grpc
from dataplane_client import DataPlaneClient, connect
from floor import Floor
from servers import server_process
from session import Session, summary
from timing import Round, Series, Steps, alternate
from workers import Worker, worker

_ROUNDS = 7
_TOKENS = 1_000_000
_FORMS = ("jagged", "padded")
_GRPC = "gRPC, Unix socket"
_QUEUE = "TransferQueue"
_CLIENT_ROWS = 64
_CLIENT_S = 1.5


@dataclass(frozen=True)
class Growth:
    """Lines over one quantity, all with the same x. Points are medians with ranges, in the unit of y."""

    name: str
    x: str
    y: str
    at: tuple[float, ...]
    lines: Mapping[str, tuple[Series, ...]]


def measure(session: Session, resident: Mapping[int, Steps] | None) -> list[Growth]:
    """Measure all growths. resident: earlier measurements over resident rows, if any."""
    python = transfer_queue_python(session)
    with ExitStack() as stack:
        server = stack.enter_context(server_process("6GiB"))
        clients = {
            OURS: stack.enter_context(connect(server.unix)),
            _GRPC: stack.enter_context(connect_over_grpc(server.unix)),
        }
        queue = stack.enter_context(queue_worker(session, python))
        found = [_over(session, *which, clients, queue) for which in _specs(session.quick)]
    if resident is not None:
        found.append(_over_resident(resident))
    found.append(_over_clients(session))
    for growth in found:
        _show(session, growth)
    return found


# -- one client --------------------------------------------------------------------------------------------------------

_Specs = Sequence[tuple[float, Spec]]


def _specs(quick: bool) -> list[tuple[str, str, _Specs]]:
    """The quantity that varies: its name, the meaning of x, and the batches by x."""
    tokens = (256, 1_024, 4_096) if quick else (64, 256, 1_024, 4_096, 16_384, 65_536)
    rows = (1, 32, 512) if quick else (1, 8, 64, 512, 4_096)
    lengths = (1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000)
    by_bytes = [(build(spec).jagged_bytes / 1e6, spec) for spec in (_uniform(64, longest) for longest in tokens)]
    return [
        ("bytes", "MB of 64 rows without padding", by_bytes),
        ("rows", "rows of 128 to 256 tokens", [(count, _uniform(count, 256)) for count in rows]),
        (
            "row length",
            f"tokens of the longest row, {_TOKENS // 1_000_000} million in all",
            [(longest, _uniform(_TOKENS * 4 // 3 // longest, longest)) for longest in lengths],
        ),
    ]


def _uniform(rows: int, longest: int) -> Spec:
    return Spec(f"{rows}x{longest}", "rollout", rows, longest // 2, longest)


def _over(
    session: Session, name: str, x: str, specs: _Specs, clients: Mapping[str, DataPlaneClient], queue: Worker | None
) -> Growth:
    lines: dict[str, list[Series]] = {}
    with session.phase(f"growth with {name}"):
        for _, spec in specs:
            for system, series in _point(session, spec, clients, queue).items():
                lines.setdefault(system, []).append(series)
    at = tuple(x for x, _ in specs)
    return Growth(name, x, "put + read, ms", at, {system: tuple(line) for system, line in lines.items()})


def _point(
    session: Session, spec: Spec, clients: Mapping[str, DataPlaneClient], queue: Worker | None
) -> Mapping[str, Series]:
    batch = build(spec)
    ours = {name: PaddedRounds(client, batch) for name, client in clients.items()}
    with Floor(batch.jagged_bytes, batch.padded_bytes) as floor:
        systems: dict[str, Round] = {"floor": floor, **ours, **queue_rounds(session, queue, spec, _FORMS)}
        measured = alternate(systems, session.rounds(_ROUNDS), session.warmups)
    for rounds in ours.values():
        rounds.close()
    shown = {name: measured[name] for name in ("floor", *ours)}
    if (fastest := fastest_queue(measured)) is not None:
        shown[_QUEUE] = fastest
    return {name: _scaled(both(steps), 1e3) for name, steps in shown.items()}


def _scaled(series: Series, factor: float) -> Series:
    return Series(tuple(value * factor for value in series.values))


def _over_resident(resident: Mapping[int, Steps]) -> Growth:
    steps = next(iter(resident.values()))
    lines = {step: tuple(_scaled(resident[rows][step], 1e3) for rows in resident) for step in steps}
    return Growth("rows resident", "rows resident", "one call, ms", tuple(resident), lines)


# -- several clients ---------------------------------------------------------------------------------------------------


def _over_clients(session: Session) -> Growth:
    counts = (1, 2, 4) if session.quick else (1, 2, 4, 8)
    lines: dict[str, tuple[Series, ...]] = {}
    with session.phase("growth with clients"), server_process() as server, _clients(session, max(counts)) as workers:
        for name, transport in ((OURS, "shm"), (_GRPC, "grpc")):
            for each in workers:
                each.call("connect", address=server.unix, transport=transport)
            lines[name] = tuple(_together(session, workers[:count]) for count in counts)
            for each in workers:
                each.call("close")
    x = f"client processes, {_CLIENT_ROWS} rows of 512 to 4096 tokens each"
    return Growth("clients", x, "put + read of all, GB/s", tuple(counts), lines)


@contextmanager
def _clients(session: Session, count: int) -> Iterator[list[Worker]]:
    """Run `count` client processes."""
    with ExitStack() as stack:
        python = Path(sys.executable)
        yield [stack.enter_context(worker(python, "client_process", session.logs, number)) for number in range(count)]


def _together(session: Session, workers: Sequence[Worker]) -> Series:
    """Throughput of all these clients together, in GB/s, by round."""
    spec = Spec("clients", "rollout", _CLIENT_ROWS, 512, 4096)
    sizes = [int(each.call("prepare", spec=spec.json(), client=number)["bytes"]) for number, each in enumerate(workers)]
    rates = []
    for _ in range(session.rounds(3)):
        for each in workers:
            each.begin("rounds", seconds=_CLIENT_S / (3 if session.quick else 1))
        done = [each.finish() for each in workers]
        rates.append(sum(one["rounds"] * size / one["seconds"] for one, size in zip(done, sizes, strict=True)) / 1e9)
    return Series(tuple(rates))


# -- shown -------------------------------------------------------------------------------------------------------------


def _show(session: Session, growth: Growth) -> None:
    session.figures[f"growth.{growth.name}"] = {
        "x": list(growth.at),
        "unit": growth.y,
        **{name: [summary(series) for series in line] for name, line in growth.lines.items()},
    }
    rows = [[short(x), *(_cell(line[index]) for line in growth.lines.values())] for index, x in enumerate(growth.at)]
    session.show(f"growth with {growth.name}: {growth.y}, median (min..max)", (growth.x, *growth.lines), rows)


def short(value: float) -> str:
    """Format a value of x."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _cell(series: Series) -> str:
    return f"{series.median:.3g} ({series.low:.3g}..{series.high:.3g})"
