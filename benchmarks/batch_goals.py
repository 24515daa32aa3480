"""Whole batches on one host, padded in and padded out, beside the floor, TransferQueue and Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from batches import D, G, R, S, Spec, build
from data_plane import checked_rounds
from dataplane_client import DataPlaneClient, connect
from floor import Floor
from peers.environments import TRANSFER_QUEUE, NotInstalledError, environment
from report import Session, in_ms, in_times
from servers import server_process
from timing import Round, Steps, alternate, in_a_row, total
from workers import Worker, WorkerError, worker

_TIMES_FLOOR = 1.5
_TIMES_TRANSFER_QUEUE = {"G": 20.0, "D": 5.0, "R": 10.0}
_ROUNDS = {"G": 41, "D": 11, "R": 31, "S": 31}
_IN_A_ROW = {"S": 20}
_FLOOR_ROUNDS, _FLOOR_IN_A_ROW = 31, 5
_JAGGED_S = 0.002
_JAGGED_GROWTH = 1.5
_SAMPLE_S = {"put": 0.001, "read": 0.0007}
OURS, GRPC = "same host", "gRPC, Unix socket"


def measure(session: Session) -> None:
    """Measure the goals on batches G, D, R and S."""
    python = transfer_queue_python(session)
    with (
        server_process() as server,
        connect(server.unix) as client,
        connect(server.unix, transport="grpc") as remote,
    ):
        session.console.print(f"values travel on the same host: {client.transport}")
        with queue_worker(python) as queue:
            for spec in (G, D, R, S):
                with session.phase(f"batch {spec.name} beside the floor and TransferQueue"):
                    _beside_the_queue(session, spec, client, remote, queue)
        if python is not None:
            with session.phase("batch G beside Ray's object store"):
                _beside_ray(session, python, client)
        with session.phase("batch G without padding"):
            _jagged_goals(session, client)


def transfer_queue_python(session: Session) -> Path | None:
    """The interpreter of TransferQueue's environment. Prints a line and returns None if it cannot be installed."""
    try:
        with session.phase("environment of TransferQueue and Ray"):
            return environment(TRANSFER_QUEUE, session.torch)
    except NotInstalledError as error:
        session.console.print(f"TransferQueue is left out: it could not be installed: {error}")
        return None


@contextmanager
def queue_worker(python: Path | None) -> Iterator[Worker | None]:
    """A running TransferQueue, or None without its interpreter."""
    with ExitStack() as stack:
        yield None if python is None else stack.enter_context(worker(python, "peers.transfer_queue"))


def queue_rounds(session: Session, queue: Worker | None, spec: Spec, forms: Sequence[str]) -> dict[str, Round]:
    """TransferQueue's rounds of a batch, by form. Empty without TransferQueue; prints a line for a form that fails."""
    rounds: dict[str, Round] = {}
    for form in forms if queue is not None else ():
        assert queue is not None
        try:
            queue.call("prepare", spec=spec, form=form)
        except WorkerError as error:
            session.console.print(f"TransferQueue is left out: {error}")
            continue
        rounds[f"TransferQueue, {form}"] = partial(queue.call, "round", name=spec.name, form=form)
    return rounds


def fastest_queue(measured: Mapping[str, Steps]) -> Steps | None:
    """TransferQueue in its faster form."""
    steps = [each for system, each in measured.items() if system.startswith("TransferQueue")]
    return min(steps, key=lambda each: total(each).median) if steps else None


def _beside_the_queue(
    session: Session, spec: Spec, client: DataPlaneClient, remote: DataPlaneClient, queue: Worker | None
) -> None:
    batch = build(spec)
    forms = ("padded",) if spec.kind in ("dense", "sample") else ("jagged", "padded")
    ours, over_grpc = checked_rounds(client, batch), checked_rounds(remote, batch)
    with Floor(batch.jagged_bytes, batch.padded_bytes) as floor:
        systems: dict[str, Round] = {"floor": floor, OURS: ours, GRPC: over_grpc}
        systems.update(queue_rounds(session, queue, spec, forms))
        turns = {name: in_a_row(system, _IN_A_ROW.get(spec.name, 1)) for name, system in systems.items()}
        measured = alternate(turns, session.rounds(_ROUNDS[spec.name]), session.warmups)
        if spec is G:
            _floor_goal(session, floor, ours)
    ours.close()
    over_grpc.close()
    title = f"batch {spec.name}: {batch.sizes}"
    session.compare(f"batch.{spec.name}", title, measured, size_bytes=batch.jagged_bytes)
    _queue_goals(session, spec.name, measured[OURS], fastest_queue(measured))


def _floor_goal(session: Session, floor: Round, ours: Round) -> None:
    """Compare with the floor only, in short sequences: in turns with slow systems, both start with cold caches."""
    turns = {name: in_a_row(system, _FLOOR_IN_A_ROW) for name, system in (("floor", floor), (OURS, ours))}
    measured = alternate(turns, session.rounds(_FLOOR_ROUNDS), session.warmups)
    session.keep("batch.G.floor", measured)
    own, least = total(measured[OURS]), total(measured["floor"])
    ratio = own.over(least)
    text = f"{in_times(ratio)} x: {in_ms(own)} against {in_ms(least)} ms"
    title = f"G padded to padded: at most {_TIMES_FLOOR} x the floor"
    session.goal(title, text, ratio.median <= _TIMES_FLOOR, ratio.median)


def _queue_goals(session: Session, name: str, ours: Steps, queue: Steps | None) -> None:
    if name == "S":
        for step, bound in _SAMPLE_S.items():
            beside = "" if queue is None else f"; TransferQueue {in_ms(queue[step])} ms"
            median = ours[step].median
            title = f"S, one row: {step} p50 at most {bound * 1e3:.1f} ms"
            session.goal(title, f"{in_ms(ours[step])} ms{beside}", median <= bound, median)
        return
    title = f"{name} padded to padded: at least {_TIMES_TRANSFER_QUEUE[name]:.0f} x as fast as TransferQueue"
    if queue is None:
        session.goal(title, "TransferQueue is missing", None)
    else:
        session.faster(title, total(ours), total(queue), _TIMES_TRANSFER_QUEUE[name])


def _beside_ray(session: Session, python: Path, client: DataPlaneClient) -> None:
    batch = build(G)
    try:
        with worker(python, "peers.object_store") as ray, Floor(batch.jagged_bytes, batch.padded_bytes) as floor:
            ray.call("prepare", spec=G, ways=["arrays"])
            ours = checked_rounds(client, batch)
            theirs = partial(ray.call, "round", way="arrays")
            systems: dict[str, Round] = {"floor": floor, OURS: ours, "Ray object store": theirs}
            measured = alternate(systems, session.rounds(_ROUNDS["G"]), session.warmups)
            ours.close()
    except WorkerError as error:
        session.console.print(f"Ray's object store is left out: {error}")
        return
    title = f"batch G beside Ray's object store: {batch.sizes}"
    session.compare("batch.G.ray", title, measured, size_bytes=batch.jagged_bytes)


def _jagged_goals(session: Session, client: DataPlaneClient) -> None:
    short, long = (checked_rounds(client, build(spec), "jagged") for spec in (G, G.longer(4)))
    turns = {name: in_a_row(each, _FLOOR_IN_A_ROW) for name, each in (("G", short), ("G, rows 4 x as long", long))}
    measured = alternate(turns, session.rounds(_FLOOR_ROUNDS), session.warmups)
    short.close()
    long.close()
    session.keep("batch.G.jagged", measured)
    read, longer = (steps["read"] for steps in measured.values())
    title = f'read_columns(layout="jagged") of G: under {_JAGGED_S * 1e3:.0f} ms'
    session.goal(title, f"{in_ms(read)} ms", read.median < _JAGGED_S, read.median)
    growth = longer.over(read)
    title = f"the same with rows 4 x as long: at most {_JAGGED_GROWTH} x"
    session.goal(title, f"{in_times(growth)} x: {in_ms(longer)} ms", growth.median <= _JAGGED_GROWTH, growth.median)
