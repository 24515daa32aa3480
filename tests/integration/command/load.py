"""Clients that keep a server busy: processes with threads that put, claim, read, commit and clear, and count.

What a client counts is what it was told: a call that returned. So when a server has counted the same, nothing that it
had accepted was lost, and nothing that it told to have failed had happened.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from tests.forked import forking

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import NotFoundError, SessionExpiredError, UnavailableError
from dataplane_client.options import TransportChoice

SIZES = (1_000, 200_000)
"""Bytes of a row: with the call, and through room that the server lends or in several frames."""

THREADS = 6
"""Of each process: two that put, three that claim, read, commit and clear, one that reads."""

CALL_S = 20.0
"""Within which every call returns, whatever else the machine does."""

_ENOUGH_S = 300.0


@dataclass
class Tally:
    """What the clients of a process have been told. transport: how the last call went. calls: that returned, by verb.
    rows: put and committed. ended: what has ended threads, by the name of the error; messages: of those that are not
    UnavailableError.
    """

    transport: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally("", self.calls + other.calls, self.rows + other.rows, self.ended + other.ended, [])


class _Process:
    """One process of the load: threads that share a client, so that what one meets is seen not to harm another."""

    def __init__(self, connected: Callable[[], DataPlaneClient], name: str, *, patient: bool) -> None:
        self._connected = connected
        self._name = name
        self._patient = patient
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._tally = Tally()

    def run(self, asked: Connection) -> None:
        """Work; answer each question with the tally, at once or when all threads have ended; end with the asker."""
        parts = (self._produce, self._produce, self._consume, self._consume, self._consume, self._read)
        with self._connected() as client, ThreadPoolExecutor(THREADS) as threads:
            running = [threads.submit(self._work, client, part, number) for number, part in enumerate(parts)]
            with contextlib.suppress(EOFError):
                while True:
                    if asked.recv():
                        wait(running)
                    with self._lock:
                        asked.send(self._tally)
            self._stopping.set()

    def _work(self, client: DataPlaneClient, part: Callable[[DataPlaneClient, str], None], number: int) -> None:
        for turn in itertools.count():
            if self._stopping.is_set() or not self._goes_on(client, part, f"{self._name}-{number}-{turn}"):
                return

    def _goes_on(self, client: DataPlaneClient, part: Callable[[DataPlaneClient, str], None], turn: str) -> bool:
        try:
            part(client, turn)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test looks at it
            if not self._patient or not isinstance(error, (NotFoundError, SessionExpiredError)):
                self._end(error)
                return False
            register(client)
        return True

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._tally.ended[type(error).__name__] += 1
            if not isinstance(error, UnavailableError):
                self._tally.messages.append(f"{type(error).__name__}: {error}")

    def _told(self, client: DataPlaneClient, verb: str, rows: int = 0) -> None:
        with self._lock:
            self._tally.transport = client.transport
            self._tally.calls[verb] += 1
            self._tally.rows[verb] += rows

    # -- what the threads do -------------------------------------------------------------------------------------------

    def _produce(self, client: DataPlaneClient, turn: str) -> None:
        for size in SIZES:
            client.put_samples([f"{turn}-{size}"], "flow", {"x": torch.zeros(1, size, dtype=torch.uint8)})
            self._told(client, "put", 1)

    def _consume(self, client: DataPlaneClient, turn: str) -> None:
        with client.claim("flow", "train", ["x"], batch_size=2, timeout_s=CALL_S) as claim:
            self._told(client, "claim")
            client.read_columns(claim.meta, ["x"])
            self._told(client, "read")
            rows = len(claim.meta.sample_ids)
            claim.commit({"y": torch.ones(rows)})
            self._told(client, "commit", rows)
        client.clear_samples(claim.meta.sample_ids, "flow")
        self._told(client, "clear", rows)

    def _read(self, client: DataPlaneClient, turn: str) -> None:
        assert client.get_samples(["still"], "still", ["x"])["x"].shape == (1, SIZES[1])
        self._told(client, "read")


def register(client: DataPlaneClient) -> None:
    """The partitions of the load: one that flows, one that is read. Safe beside others that do the same."""
    if "still" not in {partition.partition_id for partition in client.partitions()}:
        client.register_partition("flow", ["x", "y"], 0, ["train"])
        client.register_partition("still", ["x"], 0, ["train"])
        client.put_samples(["still"], "still", {"x": torch.zeros(1, SIZES[1], dtype=torch.uint8)})


def _live(address: str, transport: TransportChoice, patient: bool, asked: Connection) -> None:
    torch.set_num_threads(1)
    pauses_s = 0.1 if patient else 10 * CALL_S  # so long that no call is made again within its time
    connected = partial(
        connect, address, timeout_s=CALL_S, transport=transport, first_backoff_s=pauses_s, max_backoff_s=pauses_s
    )
    _Process(connected, f"{transport}-{address.partition(':')[0]}", patient=patient).run(asked)


class Load:
    """Running clients, one for each way."""

    def __init__(self, asked: list[Connection]) -> None:
        self._asked = asked

    def tallies(self, *, ended: bool = False) -> list[Tally]:
        """What each client has been told so far. ended: when an error has ended all of its threads."""
        for connection in self._asked:
            connection.send(ended)
        answers: list[Any] = []
        for connection in self._asked:
            assert connection.poll(_ENOUGH_S), "a client does not answer"
            answers.append(connection.recv())
        return answers


@contextlib.contextmanager
def load(*ways: tuple[str, str], patient: bool = False) -> Iterator[Load]:
    """Clients at these addresses, by these transports. Patient ones go on with the next server, which knows nothing;
    others make each call once, and end with the first that fails.
    """
    asked, processes = [], []
    try:
        for address, transport in ways:
            ours, theirs = forking().Pipe()
            processes.append(forking().Process(target=_live, args=(address, transport, patient, theirs), daemon=True))
            processes[-1].start()
            theirs.close()
            asked.append(ours)
        yield Load(asked)
    finally:
        for connection in asked:
            connection.close()
        for process in processes:
            process.join(_ENOUGH_S)
            process.close()
