"""A server and its clients at work for half an hour: is what they take flat after the warm-up, and is every row there?

    python -m tests.soak --minutes 30 --out soak.csv

Clients are killed every 2 s, connections over TCP are reset every 3 s. The CSV file has the curves, the table the
verdicts. The exit code is 1 if a curve is not flat, a call failed that should not, or a row was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.integration.faults.proxy import FaultProxy
from tests.integration.histories.campaign import final, judged
from tests.integration.histories.campaign import table as table_of_counts
from tests.integration.histories.history import NEVER
from tests.integration.histories.reader import calls_of, read_history
from tests.integration.histories.recorder import Recorder
from tests.integration.histories.settings import FIELDS, PARTITION, SHARED_TASKS, STOP_FILE, TASKS, Settings
from tests.soak.clients import Place, live
from tests.soak.sampling import Curves
from tests.soak.verdict import MEASURES, WARM_UP, fit, is_flat

from dataplane_client.client import connect
from dataplane_client.options import TransportChoice

_KILL_EVERY_S = 2.0
_RESET_EVERY_S = 3.0
_SAMPLES = 400
_START_S = 120.0
_DRAIN_S = 120.0
_GRACE_S = 2.0
_SHOWN = 20

PRODUCER, ROWS, GROUPS, SHARDS, OTHER_SHARDS = "0", "1", "2", "3", "7"
"""Slots of a campaign."""
CLIENTS: dict[str, tuple[str, str, TransportChoice]] = {
    "producer-shm": (PRODUCER, "unix", "shm"),
    "producer-tcp": (PRODUCER, "tcp", "grpc"),
    "rows-unix": (ROWS, "unix", "grpc"),
    "groups-tcp": (GROUPS, "tcp", "grpc"),
    "shards-shm": (SHARDS, "unix", "shm"),
    "shards-tcp": (OTHER_SHARDS, "tcp", "grpc"),
    "visitor-shm": ("visitor", "unix", "shm"),
    "visitor-tcp": ("visitor", "tcp", "grpc"),
    "scraper": ("scraper", "unix", "grpc"),
}
"""Processes that live as long as the soak: kind, address, and how values travel."""
DOOMED: dict[str, tuple[str, str, TransportChoice]] = {
    "doomed-producer": (PRODUCER, "unix", "shm"),
    "doomed-rows": (ROWS, "unix", "shm"),
    "doomed-groups": (GROUPS, "unix", "shm"),
}
"""Processes that are killed in turn, and then started anew. Their curves are not judged."""


class Soak:
    """A running soak: the server, a proxy for TCP, clients, and what is known of them."""

    def __init__(
        self, folder: Path, out: Path, server: subprocess.Popen[str], context: ForkServerContext, seconds: float
    ) -> None:
        assert server.stdout is not None
        self._places: dict[str, str] = json.loads(server.stdout.readline())
        self._folder, self._server, self._context, self._seconds = folder / "histories", server, context, seconds
        self._folder.mkdir()
        self.settings = Settings(self._places["unix"], self._folder, len(CLIENTS), seconds, _GRACE_S, 1, "", True)
        self.proxy = FaultProxy(self._places["tcp"])
        self.curves = Curves(out)
        self.errors: list[str] = []
        self.counts: dict[str, int] = {}
        self.kills = 0
        self._record = Recorder(self._folder, "zygote")
        with connect(self._places["unix"]) as client:
            client.register_partition(
                PARTITION, FIELDS, 0, TASKS, per_token_fields=["tokens"], clear_when_consumed=True
            )
        self._until = 0.0
        self._clients: dict[str, BaseProcess] = {}

    def run(self) -> None:
        """Work for so long, from when all clients are there; then let consumers come to an end, and judge."""
        self._start("visitor-tcp")  # behind the first client, which waits for all imports, the others come at once
        self._until = time.monotonic() + self._seconds
        self._start(*(name for name in {**CLIENTS, **DOOMED} if name not in self._clients))
        began = self.curves.began = time.monotonic()
        every = max(self._seconds / _SAMPLES, 0.2)
        due = {"sample": began, "kill": began + _KILL_EVERY_S, "reset": began + _RESET_EVERY_S}
        while (now := time.monotonic()) < self._until:
            if now >= due["sample"]:
                due["sample"] = now + every
                self._sample()
            if now >= due["kill"]:
                due["kill"] = now + _KILL_EVERY_S
                self._kill(list(DOOMED)[self.kills % len(DOOMED)])
            if now >= due["reset"]:
                due["reset"] = now + _RESET_EVERY_S
                self.proxy.reset_connections()
            time.sleep(0.05)
        self._end_work()

    def close(self) -> None:
        """Kill what still runs, and end the server, which checks the laws of its core."""
        for process in self._clients.values():
            process.kill()
            process.join()
        self.proxy.close()
        self.curves.close()
        self._server.send_signal(signal.SIGTERM)
        if code := self._server.wait(60):
            self.errors.append(f"the server ended with {code}")

    def _start(self, *names: str) -> None:
        """Start clients, and wait until they are at work."""
        self._clients |= {name: self._started(name, name) for name in names}
        deadline = time.monotonic() + _START_S
        while not all((self._folder / f"{name}.jsonl").exists() for name in names):
            assert time.monotonic() < deadline, "the clients did not begin"
            time.sleep(0.05)

    def _started(self, name: str, process: str) -> BaseProcess:
        kind, address, transport = {**CLIENTS, **DOOMED}[name]
        addresses = self._places | {"tcp": self.proxy.address}
        place = Place(self.settings, addresses["http"], addresses["http_door"], self._until)
        arguments = (kind, place.by(addresses[address], transport), process)
        started = self._context.Process(target=live, args=arguments, name=process, daemon=True)
        started.start()
        return started

    def _sample(self) -> None:
        self.curves.add("server", self._server.pid)
        for name, process in self._clients.items():
            if process.pid is not None:
                self.curves.add(name, process.pid)

    def _kill(self, name: str) -> None:
        self.kills += 1
        self._record.note("kill", process=name)
        self._clients[name].kill()
        self._clients[name].join()
        self._clients[name] = self._started(name, f"{name}-{self.kills}")

    def _end_work(self) -> None:
        """Producers have ended; consumers go on until no row is left. Then what they and the server said is judged."""
        with connect(self._places["unix"]) as client:
            deadline = time.monotonic() + _DRAIN_S
            while self._rows_or_producers(client.partition(PARTITION).rows) and time.monotonic() < deadline:
                time.sleep(0.1)
            (self._folder / STOP_FILE).touch()
            for name, process in self._clients.items():
                process.join(_DRAIN_S)
                if process.exitcode != 0:
                    self.errors.append(f"{name} ended with {process.exitcode}")
            history = read_history(self._folder, _GRACE_S, TASKS, SHARED_TASKS)
            history.final = final(client, history)
        found, self.counts = judged(history, self.settings)
        self.errors += [*found, *self._failed()]

    def _rows_or_producers(self, rows: int) -> bool:
        return rows > 0 or any("producer" in name and process.is_alive() for name, process in self._clients.items())

    def _failed(self) -> list[str]:
        """Calls that came back without an answer, though the server was there, and connections are made again: but for
        claims, which may have no time left for that.
        """
        calls = [call for path in sorted(self._folder.glob("*.jsonl")) for call in calls_of(path)]
        return [
            f"{call.process}: {call.what}: {call.facts['error']}"
            for call in calls
            if call.outcome == "unknown" and call.ended_at < NEVER and call.what != "claim"
        ]


@contextlib.contextmanager
def soak(out: Path, seconds: float) -> Iterator[Soak]:
    """A soak with its server, in a folder of its own."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.soak.clients"])
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        command, log = [sys.executable, "-m", "tests.soak.server", folder], Path(folder) / "server.log"
        with (
            log.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8") as server,
        ):
            running = Soak(Path(folder), out, server, context, seconds)
            try:
                yield running
            finally:
                running.close()
        running.errors += log.read_text().splitlines()  # it tells errors only


def table_of(curves: Curves) -> tuple[Table, bool]:
    """The medians and growths of the server and of the clients that lived as long as the soak; whether all are flat."""
    table, flat = Table("process", box=None, padding=(0, 2, 0, 0)), True
    for measure in MEASURES:
        table.add_column(f"{measure.name}\n{measure.unit or 'number'} (growth, at most {measure.allowed:g})")
    for process in ("server", *CLIENTS):
        cells = []
        for number, measure in enumerate(MEASURES):
            found = fit(curves.seconds[process], [sample[number] for sample in curves.samples[process]])
            is_well = is_flat(found, measure)
            flat = flat and is_well
            cells.append(f"{found.median:.1f} ({found.growth:+.1f}){'' if is_well else ' [bold red]not flat[/]'}")
        table.add_row(process, *cells)
    return table, flat


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("soak.csv"), help="the curves (default: %(default)s)")
    given = parser.parse_args()
    with soak(given.out, given.minutes * 60) as running:
        running.run()
    console = Console(width=None if sys.stdout.isatty() else 160)
    table, flat = table_of(running.curves)
    console.print(table)
    console.print(
        f"{'flat' if flat else 'not flat'}. The first {WARM_UP:.0%} of {given.minutes:g} minutes is warm-up. A cell "
        "has the median of the rest, and its growth: the median slope between samples times its length.\n"
        f"{len(running.errors)} errors and violations.\n{table_of_counts(running.counts, running.settings)}"
    )
    for error in running.errors[:_SHOWN]:
        console.print(error, markup=False)
    return 0 if flat and not running.errors else 1


if __name__ == "__main__":
    sys.exit(main())
