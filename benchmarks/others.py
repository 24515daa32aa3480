"""Tables that other projects have published, on our work.

`python benchmarks/others.py [miles] [relax] [nemo-rl] [verl] [trl]`

- **miles** (pull request 591): the dict of a rollout with 100 MB, 500 MB and 1 GB, put and got. It does not say what is
  in it; here each sample has an array for each of three fields. *Rebuilt* is what turns lists into columns and back,
  *moved* is the rest. Beside Ray's object store, which pickles the dict as it is, and the floor of copying.
- **Relax** (pull request 217): 256 samples of 256 MB in 1, 8 and 32 fields. Beside TransferQueue.
- **NeMo-RL**: the grid of its benchmark of checkpoints, an eighth of its rows: save, load in a fresh process, check 64
  rows. Beside TransferQueue, with as many storage units as the cell names; ours needs none.
- **verl** (issue 7579): a generator, the trainer and the server are killed, and every row is accounted for.
- **TRL** (issue 7274): one of 150 groups is slow, then the trainer is killed. What is trained on again?

`--part N` takes an N-th of the bytes and rows. *Waited* is the time in which a process sleeps or waits for a row.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from dataplane_client import EndOfDataError, TaskPolicy, connect
from floor import Floor
from others_calls import PROFILES, Rows
from peers.environments import TRANSFER_QUEUE, NotInstalledError, environment
from report import Session, arguments, begin, in_ms, table
from servers import server_process
from timing import Round, alternate
from workers import OURS, Worker, WorkerError, worker
from workload import Workload

_MB = 1_000_000
_RELAX_BYTES = 256 << 20
_SHAPES, _LENGTHS = ((32768, 1024), (4096, 8192), (2048, 16384)), ((1024, 7168), (128, 8064))
_BASE = Rows(8192, 4096, 4096, "train-ready")
_GENERATION = _BASE._replace(profile="generation")
_GRID: dict[str, tuple[Rows, int, int]] = {
    "generation": (_GENERATION, 2, 0),
    "train-ready": (_BASE, 2, 0),
    **{f"{rows} x {length}": (Rows(rows, length, length, "train-ready"), 2, 0) for rows, length in _SHAPES},
    **{f"{least} to {most}": (Rows(8192, least, most, "train-ready"), 2, 0) for least, most in _LENGTHS},
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
    parser.add_argument("--torch", default="torch==2.13.0", help="build of torch for TransferQueue")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(parts):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    session = Session(begin(), quick=options.part > 1, torch=options.torch)
    for name in options.tables or parts:
        with session.phase(name):
            parts[name](session, options.part)


# -- moved and rebuilt -------------------------------------------------------------------------------------------------


def _miles(session: Session, part: int) -> None:
    sizes = [size_bytes // part for size_bytes in (100 * _MB, 500 * _MB, 1000 * _MB)]
    with (
        server_process("4GiB") as server,
        worker(OURS, _CALLS, 0) as putter,
        worker(OURS, _CALLS, 1) as reader,
        worker(OURS, _CALLS, 2) as ray,
    ):
        putter.call("join", address=server.unix)
        reader.call("join", address=server.unix)
        ray.call("start_ray", size_bytes=sizes[-1])
        numbers = itertools.count()

        def ours() -> Mapping[str, float]:
            which = {"partition": f"rollout {next(numbers)}"}
            times = {**putter.call("put_dict", **which), **reader.call("get_dict", **which)}
            return {step: times[f"{step}, moved"] + times[f"{step}, rebuilt"] for step in ("put", "get")} | times

        for size_bytes in sizes:
            for each in (putter, reader, ray):
                each.call("prepare_dict", size_bytes=size_bytes)
            with Floor(size_bytes, size_bytes, ("put", "get")) as copy:
                systems: dict[str, Round] = {"ours": ours, "Ray": partial(ray.call, "ray_round"), "copying": copy}
                measured = alternate(systems, session.rounds(7), 1)
            rows = [
                (step, system, in_ms(steps[step]))
                for step in ("put", "put, moved", "put, rebuilt", "get", "get, moved", "get, rebuilt")
                for system, steps in measured.items()
                if step in steps
            ]
            title = f"miles: a rollout of {size_bytes / _MB:.0f} MB"
            session.console.print(table(title, ("", "", "ms"), rows, text_columns=2), "")


def _relax(session: Session, part: int) -> None:
    with server_process() as server, worker(OURS, "stores", 0) as near, _queue(session, "stores") as queue:
        near.call("connect", address=server.unix, transport="auto")
        workers = {"ours": near}
        if queue is not None:
            queue.call("start_queue")
            workers["TransferQueue"] = queue
        for fields in (1, 8, 32):
            workload = Workload(
                f"Relax {fields}", 256, fields, _RELAX_BYTES // 256 // 4 // fields // part, complex=False
            )
            size_bytes = max([each.call("prepare", workload=workload) for each in workers.values()])
            systems: dict[str, Round] = {name: partial(each.call, "round") for name, each in workers.items()}
            measured = alternate(systems, session.rounds(7), 1)
            kept = {name: {step: steps[step] for step in ("put", "get")} for name, steps in measured.items()}
            session.compare(f"relax.{fields}", f"Relax: 256 samples, {fields} fields", kept, size_bytes=size_bytes)


@contextmanager
def _queue(session: Session, module: str) -> Iterator[Worker | None]:
    """A worker in TransferQueue's environment, or nothing where that cannot be made."""
    try:
        python = environment(TRANSFER_QUEUE, session.torch)
    except NotInstalledError as error:
        session.console.print(f"TransferQueue is left out: {error}")
        yield None
        return
    with worker(python, module, 9) as queue:
        yield queue


# -- checkpoints -------------------------------------------------------------------------------------------------------


def _nemo_rl(session: Session, part: int) -> None:
    headings = ("", "MB", "save s", "load s", "disk / logical", "p95 of puts meanwhile, ms")
    for name, (full, units, writers) in _GRID.items():
        rows, shown = full._replace(rows=max(64, full.rows // _GRID_PART // part)), []
        for system, cell in (("ours", _our_cell), ("TransferQueue", _queue_cell)):
            with tempfile.TemporaryDirectory(dir=session.volume) as folder:
                try:
                    size, save_s, load_s, puts = cell(session, Path(folder), rows, units, writers)
                except (NotInstalledError, WorkerError) as error:
                    session.console.print(f"{name}, {system}: {error}")
                    continue
                stored = sum(
                    file.stat().st_blocks * 512 for file in (Path(folder) / "saved").rglob("*") if file.is_file()
                )
            p95 = f"{statistics.quantiles(puts, n=20)[-1] * 1e3:.1f} of {len(puts)}" if len(puts) > 1 else ""
            shown.append((system, f"{size / _MB:.0f}", f"{save_s:.2f}", f"{load_s:.2f}", f"{stored / size:.2f}", p95))
        session.console.print(table(f"NeMo-RL, {name}: {rows.rows} rows", headings, shown), "")


Cell = tuple[int, float, float, list[float]]
"""Bytes, seconds of save and load, and those of each put meanwhile."""


def _our_cell(_: Session, folder: Path, rows: Rows, units: int, writers: int) -> Cell:
    fields, saved = list(PROFILES[rows.profile]), str(folder / "saved")
    kept = ("--durability", "process", "--snapshot-dir", str(folder))
    with server_process("2GiB", "--data-dir", str(folder / "one"), *kept) as server, worker(OURS, _CALLS) as us:
        us.call("connect", address=server.unix, fields=fields)
        size = us.call("fill", rows=rows)
        save_s, puts = us.call("save", folder=saved, rows=rows, writers=writers)
    with server_process("2GiB", "--data-dir", str(folder / "two"), *kept) as server, worker(OURS, _CALLS) as us:
        us.call("connect", address=server.unix, fields=fields)
        return size, save_s, us.call("load", folder=saved, rows=rows), puts


def _queue_cell(session: Session, folder: Path, rows: Rows, units: int, writers: int) -> Cell:
    python, saved = environment(TRANSFER_QUEUE, session.torch), str(folder / "saved")
    with worker(python, _CALLS) as queue:
        queue.call("start_queue", units=units)
        size = queue.call("fill", rows=rows)
        save_s, puts = queue.call("save", folder=saved, rows=rows, writers=writers)
    with worker(python, _CALLS) as queue:
        queue.call("start_queue", units=units)
        return size, save_s, queue.call("load", folder=saved, rows=rows), puts


# -- crashes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notes:
    """What a process writes down of its rows, a line at once, so that the death of the process takes none of it."""

    path: Path

    def add(self, what: str, rows: Iterable[str]) -> None:
        with self.path.open("a") as notes:
            notes.write(f"{what} {' '.join(rows)}\n")

    def rows(self, what: str) -> list[str]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [row for line in lines for row in line.split()[1:] if line.startswith(f"{what} ")]

    def wait(self, what: str, rows: int) -> None:
        """Until it has as many rows. Raises TimeoutError."""
        until = time.monotonic() + _WAIT_S
        while len(self.rows(what)) < rows:
            if time.monotonic() > until:
                raise TimeoutError(f"fewer than {rows} rows were {what} within {_WAIT_S:.0f} s")
            time.sleep(0.005)


def _generate(address: str, partition: str, number: int, path: Path, rows: int) -> None:
    """A trajectory takes 20 to 100 ms, which is part of the name of its row."""
    notes, chance = Notes(path), random.Random(number)
    with connect(address) as client:
        for row in range(rows):
            took_ms = chance.randrange(20, 100)
            name = [f"{number}-{row}-{took_ms}"]
            notes.add("tried", name)
            time.sleep(took_ms / 1e3)
            client.put_samples(name, partition, {"value": torch.tensor([row])})
            notes.add("acknowledged", name)


def _train(address: str, partition: str, path: Path, size: int, *, whole_groups: bool) -> None:
    """Claim, train for 50 ms, commit, until the partition is closed and empty."""
    notes = Notes(path)
    with connect(address, session_grace_s=1.0) as client, suppress(EndOfDataError):
        for version in itertools.count(client.partition(partition).weight_version or 0):
            began = time.monotonic()
            claim = client.claim(partition, "train", ["value"], size, min_size=1, whole_groups=whole_groups)
            notes.add("waited", [f"{time.monotonic() - began:.6f}"])
            notes.add("delivered", claim.meta.sample_ids)
            time.sleep(0.05)
            claim.commit()
            notes.add("trained", claim.meta.sample_ids)
            if whole_groups:
                client.set_weight_version(partition, version + 1)


@contextmanager
def _process(target: Callable[..., None], **arguments: object) -> Iterator[BaseProcess]:
    process = _SPAWN.Process(target=target, kwargs=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _verl(session: Session, part: int) -> None:
    rows = 240 // part
    with tempfile.TemporaryDirectory(dir=session.volume) as folder, ExitStack() as stack:
        at = Path(folder)
        address, made, trained = f"unix://{at / 'socket'}", Notes(at / "made"), Notes(at / "trained")
        flags = ("--listen", address, "--data-dir", str(at / "data"), "--durability", "process")
        first = stack.enter_context(ExitStack())
        server = first.enter_context(server_process("256MiB", *flags))
        with connect(address) as client:
            client.register_partition("crash", ["value"], 0, ["train"])
        run = partial(_process, address=address, partition="crash")
        train = partial(run, _train, path=trained.path, size=4, whole_groups=False)
        doomed = stack.enter_context(run(_generate, number=0, path=made.path, rows=rows))
        living = stack.enter_context(run(_generate, number=1, path=made.path, rows=rows))
        trainer = stack.enter_context(train())
        made.wait("acknowledged", rows // 4)
        doomed.kill()
        trained.wait("delivered", len(trained.rows("delivered")) + 1)
        trainer.kill()
        made.wait("acknowledged", rows // 2)
        at_risk = set(made.rows("acknowledged")) - set(trained.rows("trained"))
        os.kill(server.pid, signal.SIGKILL)
        seen, began = len(made.rows("acknowledged")), time.monotonic()
        first.close()
        stack.enter_context(server_process("256MiB", *flags))
        made.wait("acknowledged", seen + 2)
        paused_s = time.monotonic() - began
        stack.enter_context(train())
        living.join(_WAIT_S)
        with connect(address) as client:
            client.close_partition("crash")
        tried, kept = set(made.rows("tried")), set(made.rows("acknowledged"))
        trained.wait("trained", len(kept))
        done, delivered = Counter(trained.rows("trained")), Counter(trained.rows("delivered"))
    facts = {
        "rows tried": len(tried),
        "acknowledged": len(kept),
        "lost": len(kept - set(done)),
        "doubled": sum(times > 1 for times in done.values()),
        "delivered again, since the trainer died with them": sum(times > 1 for times in delivered.values()),
        "trajectory seconds lost with the generator": _seconds(tried - kept),
        "trajectory seconds that a buffer in memory would have lost with the server": _seconds(at_risk),
        "s waited by the other generator for the server's restart, at most": f"{paused_s:.2f}",
    }
    _facts(session, "verl: a generator, the trainer and the server are killed with SIGKILL", facts)


def _seconds(rows: Iterable[str]) -> str:
    return f"{sum(int(row.rpartition('-')[2]) for row in rows) / 1e3:.2f}"


def _facts(session: Session, title: str, facts: Mapping[str, object]) -> None:
    session.console.print(table(title, ("", ""), [(name, str(fact)) for name, fact in facts.items()]), "")


# -- the position of a resume ------------------------------------------------------------------------------------------


def _trl(session: Session, part: int) -> None:
    groups, slow, step = 150 // part, 2, 10
    with tempfile.TemporaryDirectory(dir=session.volume) as folder, ExitStack() as stack:
        server, trained = stack.enter_context(server_process("256MiB")), Notes(Path(folder) / "trained")
        client = stack.enter_context(connect(server.unix))
        client.register_partition("trace", ["value"], 0, ["train"])
        client.set_policies("trace", {"train": TaskPolicy(max_staleness=4, when_stale="drop")})
        train = partial(
            _process, _train, address=server.unix, partition="trace", path=trained.path, size=step, whole_groups=True
        )
        trainer = stack.enter_context(train())
        late = client.reserve_group("trace", str(slow), [f"{slow}/0", f"{slow}/1"], weight_version=0)
        others = [group for group in range(groups) if group != slow]
        killed_after = 2 * groups // 3
        for number, group in enumerate(others):
            version = client.partition("trace").weight_version or 0
            ids = [f"{group}/0", f"{group}/1"]
            client.put_group("trace", str(group), ids, {"value": torch.tensor([group] * 2)}, weight_version=version)
            if number % step == step - 1:
                trained.wait("trained", 2 * (number + 1 - step))  # the generator is at most a step ahead
            if number == killed_after:
                trained.wait("delivered", len(trained.rows("trained")) + 1)
                trainer.kill()
                before = set(trained.rows("trained"))
                late.put([f"{slow}/0", f"{slow}/1"], {"value": torch.tensor([slow] * 2)})
                late.commit()
                began = time.monotonic()
                stack.enter_context(train())
        client.close_partition("trace")
        trained.wait("trained", 2 * len(others))
        resumed_s = time.monotonic() - began
        done, delivered = Counter(trained.rows("trained")), Counter(trained.rows("delivered"))
        waited_s = sum(map(float, trained.rows("waited")))
        left = client.partition("trace").rows
    finished = {int(row.partition("/")[0]) for row in before}
    prefix = next(group for group in itertools.count() if group not in finished)
    facts = {
        "groups": groups,
        "trained before the trainer was killed": len(finished),
        "position of a cursor that counts": prefix,
        "groups that it would train again": len([group for group in finished if group > prefix]),
        "ours, trained again": sum(times > 1 for times in done.values()) // 2,
        "ours, delivered again, since the trainer died with them": sum(times > 1 for times in delivered.values()) // 2,
        "ours, not trained": groups - len(done) // 2,
        "s from the kill to the last group": f"{resumed_s:.2f}",
        "s of these and before in which trainers waited for rows": f"{waited_s:.2f}",
    }
    _facts(session, f"TRL: group {slow} is slow, max_staleness 4 ({left} rows left)", facts)


if __name__ == "__main__":
    main()
