"""Tables that other projects have published, on our work.

`python benchmarks/others.py [miles] [relax] [nemo-rl] [verl] [trl]`

- **miles** (pull request 591): the dict of a rollout with 100 MB, 500 MB and 1 GB, put and got. It does not say what is
  in it; here each sample has an array for each of three fields. What is not *moved* is turning lists into columns and
  back. Beside Ray's object store, which pickles the dict as it is, and the floor of copying.
- **Relax** (pull request 217): 256 samples of 256 MB in 1, 8 and 32 fields. Beside TransferQueue.
- **NeMo-RL**: the grid of its benchmark of checkpoints, an eighth of its rows: save, load in a fresh process, check 64
  rows. Beside TransferQueue, with as many storage units as the cell names; ours needs none.
- **verl** (issue 7579): a generator, the trainer and the server are killed, and every row is accounted for.
- **TRL** (issue 7274): one of 150 groups is slow, then the trainer is killed. What is trained on again?

`--part N` takes an N-th of the bytes and rows.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.managers import ListProxy
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from dataplane_client import EndOfDataError, TaskPolicy, connect
from exchanges import QUEUE, SAME_HOST, performance_test
from floor import Floor
from others_calls import Rows
from peers.environments import TRANSFER_QUEUE, NotInstalledError, environment
from report import Session, arguments, begin, table
from servers import server_process
from timing import Round, alternate
from workers import OURS, Worker, WorkerError, worker
from workload import Workload

_MB = 1_000_000
_TOKEN_BYTES = 16  # of the three fields of miles' rollout
_RELAX_BYTES = 256 << 20
_SHAPES, _LENGTHS = ((32768, 1024), (4096, 8192), (2048, 16384)), ((1024, 7168), (128, 8064))
_BASE = Rows(8192, 4096, 4096)
_GENERATION = _BASE._replace(profile="generation")
_GRID: dict[str, tuple[Rows, int, int]] = {
    "generation": (_GENERATION, 2, 0),
    "train-ready": (_BASE, 2, 0),
    **{f"{rows} x {length}": (Rows(rows, length, length), 2, 0) for rows, length in _SHAPES},
    **{f"{least} to {most}": (Rows(8192, least, most), 2, 0) for least, most in _LENGTHS},
    **{f"{units} storage units": (_BASE, units, 0) for units in (1, 4, 8)},
    "train-ready, 4 write": (_BASE, 2, 4),
    "generation, 4 write": (_GENERATION, 2, 4),
}
"""Rows, storage units, and threads that write meanwhile."""
_GRID_PART = 8
_CALLS = "others_calls"
_WAIT_S = 120.0
_SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parts = {"miles": _miles, "relax": _relax, "nemo-rl": _nemo_rl, "verl": _verl, "trl": _trl}
    parser = arguments(__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--part", type=int, default=1, help="take an N-th of the bytes and rows")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(parts):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    session = Session(begin(), quick=options.part > 1, torch="torch==2.13.0")
    for name in options.tables or parts:
        with session.phase(name):
            try:
                parts[name](session, options.part)
            except (NotInstalledError, WorkerError) as error:
                session.console.print(f"{name} is left out: {error}")


# -- moved and rebuilt -------------------------------------------------------------------------------------------------


def _miles(session: Session, part: int) -> None:
    with (
        server_process("4GiB") as server,
        worker(OURS, _CALLS, 0) as putter,
        worker(OURS, _CALLS, 1) as reader,
        worker(OURS, _CALLS, 2) as ray,
    ):
        for each in (putter, reader):
            each.call("connect", address=server.unix, profile="rollout")
        ray.call("start_ray")
        for size_bytes in (100 * _MB // part, 500 * _MB // part, 1000 * _MB // part):
            rows = Rows(size_bytes // _TOKEN_BYTES // 6144, 4096, 8192, "rollout")
            for each in (putter, reader):
                each.call("prepare", rows=rows)
            with Floor(size_bytes, size_bytes, ("put", "get")) as copy:
                systems: dict[str, Round] = {
                    "ours": lambda: {**putter.call("put"), **reader.call("get")},
                    "Ray": partial(ray.call, "ray_round", rows=rows),
                    "copying": copy,
                }
                measured = alternate(systems, session.rounds(7), 1)
            measured["ours, moved"] = {step: measured["ours"].pop(f"{step}, moved") for step in ("put", "get")}
            title = f"miles: a rollout of {size_bytes / _MB:.0f} MB"
            session.compare(title, title, measured, size_bytes=size_bytes)


def _relax(session: Session, part: int) -> None:
    python = environment(TRANSFER_QUEUE, session.torch)
    with server_process() as server, worker(OURS, "stores", 0) as near, worker(python, "stores", 1) as queue:
        near.call("connect", address=server.unix, transport="auto")
        queue.call("start_queue")
        for fields in (1, 8, 32):
            length = _RELAX_BYTES // 256 // 4 // fields // part
            workload = Workload(f"Relax, {fields} fields", 256, fields, length, complex=False)
            performance_test(session, workload, 7, {SAME_HOST: near, QUEUE: queue})


# -- checkpoints -------------------------------------------------------------------------------------------------------


def _nemo_rl(session: Session, part: int) -> None:
    headings = ("", "MB", "save s", "load s", "disk / logical", "p95 of puts meanwhile, ms")
    for name, (full, units, writers) in _GRID.items():
        rows, shown = full._replace(rows=max(64, full.rows // _GRID_PART // part)), []
        for system, started in (("ours", _our_store), ("TransferQueue", partial(_queue, session.torch, units))):
            with tempfile.TemporaryDirectory(dir=session.volume) as folder:
                saved = Path(folder) / "saved"
                try:
                    with started(rows, Path(folder), "one") as store:
                        size = store.call("fill", rows=rows)
                        save_s, puts = store.call("save", folder=str(saved), rows=rows, writers=writers)
                    with started(rows, Path(folder), "two") as store:
                        load_s = store.call("load", folder=str(saved), rows=rows)
                except (NotInstalledError, WorkerError) as error:
                    session.console.print(f"{name}, {system}: {error}")
                    continue
                stored = sum(file.stat().st_blocks * 512 for file in saved.rglob("*") if file.is_file())
            p95 = f"{statistics.quantiles(puts, n=20)[-1] * 1e3:.1f} of {len(puts)}" if len(puts) > 1 else ""
            shown.append((system, f"{size / _MB:.0f}", f"{save_s:.2f}", f"{load_s:.2f}", f"{stored / size:.2f}", p95))
        session.console.print(table(f"NeMo-RL, {name}: {rows.rows} rows", headings, shown), "")


@contextmanager
def _our_store(rows: Rows, folder: Path, data: str) -> Iterator[Worker]:
    flags = ("--data-dir", str(folder / data), "--durability", "process", "--snapshot-dir", str(folder))
    with server_process("2GiB", *flags) as server, worker(OURS, _CALLS) as us:
        us.call("connect", address=server.unix, profile=rows.profile)
        yield us


@contextmanager
def _queue(torch_build: str, units: int, *_: object) -> Iterator[Worker]:
    with worker(environment(TRANSFER_QUEUE, torch_build), _CALLS) as queue:
        queue.call("start_queue", units=units)
        yield queue


# -- crashes -----------------------------------------------------------------------------------------------------------

Notes = Mapping[str, "ListProxy[str]"]
"""What processes have done with rows, written down in another process at once, so that no death takes a note."""


@contextmanager
def _notes() -> Iterator[Notes]:
    with _SPAWN.Manager() as manager:
        yield {what: manager.list() for what in ("tried", "acknowledged", "delivered", "trained")}


def _wait(rows: ListProxy[str], count: int) -> None:
    until = time.monotonic() + _WAIT_S
    while len(rows) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{len(rows)} of {count} rows within {_WAIT_S:.0f} s")
        time.sleep(0.005)


def _start(target: Callable[..., None], *words: object) -> BaseProcess:
    process = _SPAWN.Process(target=target, args=words, daemon=True)
    process.start()
    return process


def _generate(notes: Notes, address: str, number: int, rows: int) -> None:
    """A trajectory takes 20 to 100 ms, which is part of the name of its row."""
    chance = random.Random(number)
    with connect(address) as client:
        for row in range(rows):
            took_ms = chance.randrange(20, 100)
            name = f"{number}-{row}-{took_ms}"
            notes["tried"].append(name)
            time.sleep(took_ms / 1e3)
            client.put_samples([name], "rows", {"value": torch.tensor([row])})
            notes["acknowledged"].append(name)


def _train(notes: Notes, address: str, size: int, whole_groups: bool) -> None:
    """Claim, train for 50 ms, commit, until the partition is closed and empty."""
    with connect(address, session_grace_s=1.0) as client, suppress(EndOfDataError):
        for version in itertools.count(client.partition("rows").weight_version or 0):
            claim = client.claim("rows", "train", ["value"], size, min_size=1, whole_groups=whole_groups)
            notes["delivered"].extend(claim.meta.sample_ids)
            time.sleep(0.05)
            claim.commit()
            notes["trained"].extend(claim.meta.sample_ids)
            if whole_groups:
                client.set_weight_version("rows", version + 1)


def _verl(session: Session, part: int) -> None:
    rows = 240 // part
    with tempfile.TemporaryDirectory(dir=session.volume) as folder, _notes() as notes:
        tried, kept, delivered, trained = notes.values()
        address = f"unix://{folder}/socket"
        flags = ("--listen", address, "--data-dir", f"{folder}/data", "--durability", "process")
        with server_process("256MiB", *flags) as server:
            with connect(address) as client:
                client.register_partition("rows", ["value"], 0, ["train"])
            doomed, living = (_start(_generate, notes, address, number, rows) for number in range(2))
            trainer = _start(_train, notes, address, 4, False)
            _wait(kept, rows // 4)
            doomed.kill()
            _wait(delivered, len(delivered) + 1)
            trainer.kill()
            _wait(kept, rows // 2)
            at_risk = set(kept) - set(trained)
            os.kill(server.pid, signal.SIGKILL)
            seen, began = len(kept), time.monotonic()
        with server_process("256MiB", *flags):
            _wait(kept, seen + 2)
            paused_s = time.monotonic() - began
            trainer = _start(_train, notes, address, 4, False)
            living.join(_WAIT_S)
            with connect(address) as client:
                client.close_partition("rows")
            trainer.join(_WAIT_S)
        facts = {
            "acknowledged": len(kept),
            "lost": len(set(kept) - set(trained)),
            "doubled": _repeated(trained),
            "delivered again, since the trainer died with them": _repeated(delivered),
            "trajectory seconds lost with the generator": _seconds(set(tried) - set(kept)),
            "trajectory seconds that a buffer in memory would have lost with the server": _seconds(at_risk),
            "s waited by the other generator for the server's restart, at most": f"{paused_s:.2f}",
        }
    _show(session, "verl: a generator, the trainer and the server are killed with SIGKILL", facts)


def _seconds(rows: Iterable[str]) -> str:
    return f"{sum(int(row.rpartition('-')[2]) for row in rows) / 1e3:.2f}"


def _repeated(rows: Iterable[str]) -> int:
    return sum(times > 1 for times in Counter(rows).values())


def _show(session: Session, title: str, facts: Mapping[str, object]) -> None:
    session.console.print(table(title, ("", ""), [(name, str(fact)) for name, fact in facts.items()]), "")


# -- the position of a resume ------------------------------------------------------------------------------------------


def _trl(session: Session, part: int) -> None:
    groups, slow, ahead = 150 // part, 2, 10
    others = [group for group in range(groups) if group != slow]
    with server_process("256MiB") as server, _notes() as notes, connect(server.unix) as client:
        delivered, trained = notes["delivered"], notes["trained"]
        client.register_partition("rows", ["value"], 0, ["train"])
        client.set_policies("rows", {"train": TaskPolicy(max_staleness=4, when_stale="drop")})
        trainer = _start(_train, notes, server.unix, 5, True)
        late = client.reserve_group("rows", str(slow), [str(slow)], weight_version=0)
        for number, group in enumerate(others):
            version = client.partition("rows").weight_version or 0
            value = {"value": torch.tensor([group])}
            client.put_group("rows", str(group), [str(group)], value, weight_version=version)
            _wait(trained, number + 1 - ahead)
            if number == 2 * groups // 3:
                _wait(delivered, len(trained) + 1)
                trainer.kill()
                finished = set(map(int, trained))
                late.put([str(slow)], {"value": torch.tensor([slow])})
                late.commit()
                trainer = _start(_train, notes, server.unix, 5, True)
        client.close_partition("rows")
        trainer.join(_WAIT_S)
        position = next(group for group in itertools.count() if group not in finished)
        facts = {
            "groups": groups,
            "trained before the trainer was killed": len(finished),
            "position of a cursor that counts": position,
            "groups that it would train again": len([group for group in finished if group > position]),
            "ours, trained again": _repeated(trained),
            "ours, delivered again, since the trainer died with them": _repeated(delivered),
            "ours, not trained": sorted(set(range(groups)) - set(map(int, trained))),
        }
    _show(session, f"TRL: group {slow} is slow, max_staleness 4", facts)


if __name__ == "__main__":
    main()
