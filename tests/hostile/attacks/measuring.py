"""One attack, measured: a server, a probe at work, then a process that spins, then one that attacks."""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.hostile.attacks.probe import Tally, Work, probe
from tests.hostile.attacks.table import ATTACKS, Attack
from tests.hostile.target import Target, own_bytes, peak_of
from tests.integration.command.conftest import Command

from dataplane_client.client import connect

MOST_TIMES = 3.0
MOST_LOG_BYTES = 1 << 20
_WARM_UP_S = 1.0
_ANSWER_S = 90.0
MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """What an attack did. steps: how often it was sent. memory: before, and the peak, in bytes. down: why the server is
    not up and well, or "".
    """

    attack: Attack
    steps: int
    alone: Tally
    during: Tally
    memory: tuple[int, int]
    down: str

    def times(self, alone_ms: float) -> float:
        return self.during.p99_ms() / alone_ms

    def wrong(self, alone_ms: float) -> list[str]:
        """What should not be. alone_ms: the probe's p99 alone."""
        grown, bound = (self.memory[1] - self.memory[0]) // MIB, self.attack.memory_mib
        failed = [] if self.attack.refuses else self.during.failed
        slow = self.during.p99_ms() > max(MOST_TIMES * alone_ms, self.attack.p99_ms)
        return [
            *([self.down] if self.down else []),
            *([f"memory grew by {grown} MiB, the bound is {bound}"] if grown > bound else []),
            *([f"p99 is {self.times(alone_ms):.1f} times that alone"] if slow else []),
            *([f"{len(failed)} calls failed: {failed[0]}"] if failed else []),
        ]


class Child:
    """A process that answers what it is asked."""

    def __init__(self, run: Any, *arguments: object) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["tests.hostile.attacks.probe", "tests.hostile.attacks.table"])
        self._asked, theirs = context.Pipe()
        self._process = context.Process(target=run, args=(*arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.answer()

    def ask(self, question: bool = True) -> Any:
        self._asked.send(question)
        return self.answer()

    def answer(self) -> Any:
        if not self._asked.poll(_ANSWER_S):
            raise TimeoutError(f"{self._process.name} did not answer within {_ANSWER_S:g} s")
        return self._asked.recv()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._asked.send(False)
        self._process.join(_ANSWER_S)
        self._process.kill()
        self._process.join()


def spin(asked: Connection) -> None:
    os.nice(19)
    asked.send(None)
    while not asked.poll():
        sum(range(100_000))


def attack(name: str, pid: int, address: str, http: str, asked: Connection) -> None:
    """Attack until asked for the number of steps; keep what is open until asked to end."""
    os.nice(19)
    with (
        connect(address, transport="grpc", timeout_s=60.0) as client,
        closing(Target(pid, address, client, http)) as target,
    ):
        target.fill()
        steps: Any = ATTACKS[name].run(target)
        with closing(steps):
            done = next(steps) or 0
            asked.send(None)
            while not asked.poll():
                next(steps)
                done += 1
            asked.recv()
            asked.send(done)
            asked.recv()


def outcome_of(name: str, seconds: float, folder: Path) -> Outcome:
    """Measure one attack on a server of its own. Blocks for twice the seconds and what the start takes."""
    found, address = ATTACKS[name], f"unix://{folder}/dataplane.sock"
    flags = ("--memory", "64MiB", "--listen", address, "--http", "127.0.0.1:0", *found.flags)
    with closing(Command([*flags], folder / "server.log")) as server:
        pid, http = server.process.pid, server.http.removeprefix("http://")
        with closing(Child(probe, address, http)) as probing:
            time.sleep(_WARM_UP_S)
            with closing(Child(spin)):
                probing.ask()
                time.sleep(seconds)
                alone = probing.ask()
            before = own_bytes(pid)
            with peak_of(pid) as peak, closing(Child(attack, name, pid, address, http)) as attacking:
                probing.ask()
                time.sleep(seconds)
                steps = attacking.ask()
                during = probing.ask()
        return Outcome(found, steps, alone, during, (before, max(peak)), _down(server, address))


def _down(server: Command, address: str) -> str:
    """Whether the server is there, serves a new client, and has not logged too much."""
    if server.process.poll() is not None:
        return f"the server ended with {server.process.returncode}"
    if len(server.log) > MOST_LOG_BYTES:
        return f"the log has {len(server.log)} bytes"
    with connect(address, transport="shm", timeout_s=20.0) as client:
        work = Work(client)
        work.turn()
    return "; ".join(f"a new client: {error}" for error in work.tally.failed)
