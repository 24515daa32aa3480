"""Starts clients, kills them, stops them, starts others: `python -m tests.integration.histories.zygote SETTINGS`.

It has imported everything and opened nothing, so a client that it forks comes to work within milliseconds. It says
"producers are through" when no fault is to come and no producer runs any more, and ends when its consumers have.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass

import torch
from tests.integration.histories.consumers import Consumer, GroupConsumer, ShardConsumer
from tests.integration.histories.producers import Producer
from tests.integration.histories.recorder import Pulse, Recorder
from tests.integration.histories.settings import Settings

from dataplane_client.client import connect
from dataplane_client.errors import NotFoundError

THROUGH = "producers are through"

_KINDS: tuple[type[Consumer] | None, ...] = (None, Consumer, GroupConsumer, ShardConsumer)
_PAUSE_S = 0.02
_FAULTS_A_CLIENT = 0.25  # a second
_PR_SET_PDEATHSIG = 1


def live(settings: Settings, slot: int, process: str, until: float) -> None:
    """The life of one client; producers end at a time, consumers with the campaign."""
    record = Recorder(settings.folder, process, (NotFoundError,) if settings.rows_vanish else ())
    Pulse(record, settings.grace_s)
    torch.set_num_threads(1)
    kind = _KINDS[slot % 4]
    try:
        if kind is not None:
            options = settings.options(slot, process)
            kind(settings, lambda: connect(settings.address, **options), record, slot).consume(until)
            return
        with connect(settings.address, **settings.options(slot, process)) as client:
            Producer(client, record, random.Random(f"{settings.seed} {process}")).produce(until)
    except BaseException:
        record.note("complaint", text=traceback.format_exc())
        raise


def _fork(settings: Settings, slot: int, process: str, until: float) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            live(settings, slot, process, until)
            status = 0
    finally:
        os._exit(status)  # nothing of the parent's may run


@dataclass(slots=True)
class Client:
    """A process that runs, or is stopped until a time."""

    slot: int
    life: int
    pid: int
    stopped_until: float = 0.0

    @property
    def process(self) -> str:
        return f"{self.slot}.{self.life}"


class Campaign:
    """Clients, one for each slot."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._record = Recorder(settings.folder, "zygote")
        self._chance = random.Random(settings.seed)
        self._until = time.monotonic() + settings.seconds
        self._clients = {slot: self._started(slot, 1) for slot in range(settings.processes)}

    def run(self) -> None:
        while time.monotonic() < self._until:
            self._resume(time.monotonic())
            if self._chance.random() < _FAULTS_A_CLIENT * _PAUSE_S * len(self._clients):
                self._strike(self._chance.choice(list(self._clients.values())))
            time.sleep(_PAUSE_S)
        self._resume(self._until + 1e9)
        self._wait_for([client for client in self._clients.values() if _KINDS[client.slot % 4] is None])
        sys.stdout.write(f"{THROUGH}\n")
        sys.stdout.flush()
        self._wait_for([client for client in self._clients.values() if _KINDS[client.slot % 4] is not None])

    def _started(self, slot: int, life: int) -> Client:
        client = Client(slot, life, 0)
        client.pid = _fork(self._settings, slot, client.process, self._until)
        return client

    def _resume(self, now: float) -> None:
        for client in self._clients.values():
            if 0.0 < client.stopped_until <= now:
                os.kill(client.pid, signal.SIGCONT)
                client.stopped_until = 0.0

    def _strike(self, client: Client) -> None:
        if client.stopped_until:
            return
        fault = self._chance.random()
        if fault < 0.5:
            self._kill(client)
        else:
            length = self._chance.uniform(1.2, 2.5) if fault < 0.85 else self._chance.uniform(0.1, 0.4)
            self._stop(client, length * self._settings.grace_s)

    def _kill(self, client: Client) -> None:
        self._record.note("kill", process=client.process)
        os.kill(client.pid, signal.SIGKILL)
        self._reap(client, -signal.SIGKILL)
        self._clients[client.slot] = self._started(client.slot, client.life + 1)

    def _stop(self, client: Client, seconds: float) -> None:
        self._record.note("stop", process=client.process, long=seconds > self._settings.grace_s)
        os.kill(client.pid, signal.SIGSTOP)
        client.stopped_until = time.monotonic() + seconds

    def _wait_for(self, clients: list[Client]) -> None:
        for client in clients:
            self._reap(client, 0)

    def _reap(self, client: Client, expected: int) -> None:
        _, status = os.waitpid(client.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != expected:
            self._record.note("complaint", text=f"{client.process} ended with {code}")


if __name__ == "__main__":
    Campaign(Settings.of_json(sys.argv[1])).run()
