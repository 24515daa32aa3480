"""Equal work beside the ways in which other frameworks move training data between processes, in turns.

- **verl's DataProto** through Ray's object store. verl's issue 2847 publishes 0.69 s for 0.029 GB and does not say
  which tensors these are. We send batches P and Q (see `batches`): verl the rectangles, with torch or as NumPy arrays;
  the faster counts. We cut them to the lengths of the rows. Of P we read views, as verl does with NumPy.
- **AReaL's tensor store** (`peers.areal_store`) stores batch G as 64 trajectories, each cut to its longest row, and its
  reader ends with these tensors. Ours cuts every row, and ends with one padded batch of all rows, which is more work.
- **prime-rl's transports** (`peers.prime_rl`) send a grid of micro-batches to 8 ranks (`grid`). We put the grid once,
  and each rank claims its shard of the step.
- **TransferQueue**, in one process each (`stores`): its performance test, and puts of one row with 21 columns, as
  NeMo-RL's token sink stages each model call, one after the other under new keys.

Reads and gets end when a number of each page is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import grid
from batches import G, P, Q, Spec, build
from dataplane_client.codec import Layout
from dataplane_client.options import TransportChoice
from peers.environments import RE_CREATED, TRANSFER_QUEUE, VERL, NotInstalledError, environment
from report import Session
from servers import ServerProcess, server_process
from timing import Round, Series, Steps, alternate, total
from workers import OURS, Worker, WorkerError, worker
from workload import Form, Workload

SAME_HOST, _GRPC, QUEUE = "ours, same host", "ours, gRPC", "TransferQueue"
_TRANSPORTS: dict[str, TransportChoice] = {SAME_HOST: "auto", _GRPC: "grpc"}
_VERL, _AREAL = "verl's DataProto", "AReaL's tensor store"
_SERIALIZATIONS = {f"{_VERL}, torch": "", f"{_VERL}, NumPy": "numpy"}
_SENT: tuple[tuple[Spec, Layout, int], ...] = ((P, "auto", 15), (Q, "padded", 7))
_AREAL_ROUNDS, _GRID_ROUNDS, _ROW_ROUNDS, _ROW_PUTS = 15, 21, 31, 20
_SETTINGS = (("CI", 128, 4, 1024, 15), ("small", 1024, 9, 8192, 5))
_QUICK_PART, _TIMES = 8, 5.0
_FORMS: dict[str, Form] = {f"{QUEUE}, nested": "jagged", f"{QUEUE}, rectangles": "dense"}


def measure(session: Session) -> None:
    """Measure the goals beside other frameworks. One whose peer is missing or fails says so; the others go on."""
    peers: dict[str, Callable[[Session, ServerProcess], None]] = {
        _VERL: _beside_verl,
        _AREAL: _beside_areal,
        "prime-rl's transports": _beside_prime_rl,
        QUEUE: _beside_queue,
    }
    with server_process() as server:
        for peer, compare in peers.items():
            with session.phase(f"exchanges beside {peer}"):
                try:
                    compare(session, server)
                except (NotInstalledError, WorkerError) as error:
                    session.console.print(f"{peer} is left out: {error}")
                    session.goal(f"exchanges beside {peer}: at least as fast", str(error), None)


# -- batches -----------------------------------------------------------------------------------------------------------


@contextmanager
def _our_rounds(server: ServerProcess, spec: Spec, layout: Layout) -> Iterator[dict[str, Round]]:
    """Rounds of a batch from one process of ours to another, by name, once each gave it back unchanged."""
    with worker(OURS, "data_plane", 0) as putter, worker(OURS, "data_plane", 1) as reader:
        numbers = itertools.count()

        def one_round(partition: str) -> Mapping[str, float]:
            which = {"partition": partition, "number": next(numbers)}
            times = {**putter.call("put", **which), **reader.call("read", **which)}
            putter.call("clear", partition=partition)
            return times

        rounds: dict[str, Round] = {}
        for name, transport in _TRANSPORTS.items():
            partition = f"{spec.name}, {transport}"
            for each in (putter, reader):
                where = {"partition": partition, "address": server.unix, "transport": transport}
                each.call("prepare", **where, spec=spec, layout=layout)
            one_round(partition)
            reader.call("check", partition=partition)
            rounds[name] = partial(one_round, partition)
        yield rounds


def _beside_verl(session: Session, server: ServerProcess) -> None:
    ways = _SERIALIZATIONS
    with worker(environment(VERL, session.torch), "peers.object_store") as verl:
        for spec, layout, rounds in _SENT:
            verl.call("prepare", spec=spec, ways=list(ways.values()))
            with _our_rounds(server, spec, layout) as systems:
                systems.update({name: partial(verl.call, "round", way=way) for name, way in ways.items()})
                measured = alternate(systems, session.rounds(rounds), 1)
            sizes = build(spec).sizes
            session.compare(f"exchange.data_proto.{spec.name}", f"batch {spec.name} beside {_VERL}: {sizes}", measured)
            faster = min(ways, key=lambda name: total(measured[name]).median)
            title = f"{spec.name}, {sizes}, from process to process: at least as fast as {_VERL}"
            session.faster(title, total(measured[SAME_HOST]), total(measured[faster]))
            ways = {faster: ways[faster]}


def _beside_areal(session: Session, server: ServerProcess) -> None:
    python, module = environment(RE_CREATED, session.torch), "peers.areal_store"
    with worker(python, module, 0) as producer, worker(python, module, 1) as reader:
        address = producer.call("serve", spec=G)

        def one_round() -> Mapping[str, float]:
            put, shard_ids = producer.call("store")
            read = reader.call("fetch", address=address, shard_ids=shard_ids)
            reader.call("delete", address=address, shard_ids=shard_ids)
            return {**put, **read}

        one_round()
        if producer.call("digest") != reader.call("digest"):
            raise RuntimeError(f"{_AREAL}: batch G came back changed")
        with _our_rounds(server, G, "padded") as systems:
            measured = alternate({**systems, _AREAL: one_round}, session.rounds(_AREAL_ROUNDS), 1)
    session.compare("exchange.tensor_store", f"batch G beside {_AREAL}: {build(G).sizes}", measured)
    for name in _TRANSPORTS:
        title = f"G, from process to process, {name}: at least as fast as {_AREAL}"
        session.faster(title, total(measured[name]), total(measured[_AREAL]))


def _beside_prime_rl(session: Session, server: ServerProcess) -> None:
    python = environment(RE_CREATED, session.torch)
    theirs = {f"prime-rl, {way}": way for way in ("files", "ZMQ")}
    with worker(OURS, "our_grid") as us, worker(python, "peers.prime_rl") as them:
        systems: dict[str, Round] = {}
        for name, transport in _TRANSPORTS.items():
            us.call("prepare", address=server.unix, transport=transport)
            systems[name] = partial(us.call, "round", way=transport)
        for name, way in theirs.items():
            them.call("prepare", way=way)
            systems[name] = partial(them.call, "round", way=way)
        measured = alternate(systems, session.rounds(_GRID_ROUNDS), session.warmups)
    size = f"{grid.RANKS} ranks x {grid.BATCHES} micro-batches x {grid.TOKENS} tokens"
    session.compare("exchange.grid", size, measured)
    for name in theirs:
        title = f"{size}, from lists to tensors: at least as fast as {name}"
        session.faster(title, total(measured[SAME_HOST]), total(measured[name]))


# -- TransferQueue -----------------------------------------------------------------------------------------------------


def _beside_queue(session: Session, server: ServerProcess) -> None:
    python = environment(TRANSFER_QUEUE, session.torch)
    with worker(OURS, "stores", 0) as near, worker(OURS, "stores", 1) as remote, worker(python, "stores", 2) as queue:
        near.call("connect", address=server.unix, transport="auto")
        remote.call("connect", address=server.unix, transport="grpc")
        queue.call("start_queue")
        _single_rows(session, {SAME_HOST: near, _GRPC: remote}, queue)
        for (name, rows, fields, length, rounds), is_complex in itertools.product(_SETTINGS, (False, True)):
            part = _QUICK_PART if session.quick and name == "small" else 1
            shown = f"{name} / {part}" if part > 1 else name
            workload = Workload(shown, rows // part, fields, length, is_complex)
            performance_test(session, workload, rounds, {SAME_HOST: near, QUEUE: queue})


def _single_rows(session: Session, ours: Mapping[str, Worker], queue: Worker) -> None:
    """TransferQueue takes columns of tokens as nested tensors or as rectangles with one row; the faster form counts."""

    def puts(putter: Worker, form: Form) -> Mapping[str, list[float]]:
        putter.call("prepare_record", form=form)
        return {"put": putter.call("puts", times=_ROW_PUTS)}

    systems: dict[str, Round] = {name: partial(puts, each, "jagged") for name, each in ours.items()}
    systems.update({name: partial(puts, queue, form) for name, form in _FORMS.items()})
    measured = alternate(systems, session.rounds(_ROW_ROUNDS), 1)
    session.compare("exchange.single_row", "put of one row with 21 columns", measured)
    quantiles: dict[str, Callable[[Series], float]] = {"p50": lambda each: each.median, "p99": lambda each: each.p99}
    for quantile, of in quantiles.items():
        peer = min(of(measured[name]["put"]) for name in _FORMS)
        for name in ours:
            taken = of(measured[name]["put"])
            text = f"{peer / taken:.2f} x: {taken * 1e3:.2f} against {peer * 1e3:.2f} ms"
            title = f"put of a row with 21 columns, {quantile}, {name}: at least as fast as {QUEUE}"
            session.goal(title, text, taken <= peer, peer / taken)


def performance_test(session: Session, workload: Workload, rounds: int, workers: Mapping[str, Worker]) -> None:
    """Put, list, get of all fields, clear. A quick run's "small" has an eighth of the rows."""
    size_bytes = max([each.call("prepare", workload=workload) for each in workers.values()])
    systems: dict[str, Round] = {name: partial(each.call, "round") for name, each in workers.items()}
    measured = alternate(systems, session.rounds(rounds), 1)
    name = f"{workload.name} {workload.kind}"
    size = f"{workload.rows} x {workload.fields} x {workload.length}, {size_bytes / 1e6:.3g} MB"
    session.compare(f"exchange.performance_test.{name}", f"{name}: {size}", measured)
    ours, queue = (_compared(measured[system]) for system in (SAME_HOST, QUEUE))
    for step in ours:
        title = f"{name}, {step}: at least {_TIMES:g} x as fast as {QUEUE}"
        session.faster(title, ours[step], queue[step], _TIMES)


def _compared(steps: Steps) -> Steps:
    return {"put": steps["put"], "get": steps["get"], "put, list, get and clear": total(steps)}
