"""Clients of a soak: each is a process that does one kind of work, turn by turn, until it is told to stop.

A row's tokens follow from its name, so a reader notices another row's bytes.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.soak.ledger import Ledger
from torch.nested import nested_tensor

from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.errors import ClaimTimeoutError, DataPlaneError
from dataplane_client.options import TransportChoice

PARTITION = "soak"
FIELDS = ("tokens", "reward")
TASKS = {"score": ["tokens"], "train": ["tokens", "reward"]}
"""The fields that each consumes; score adds the reward."""

_BACKLOG_ROWS = 300
_TURN_S = 0.02
_GRACE_S = 2.0


@dataclass(frozen=True)
class Place:
    """address, http, http_door: of the server. transport: of the client's values. folder: of ledgers; producers stop
    when it has the file `producers`, all others when it has `all`.
    """

    address: str
    transport: TransportChoice
    http: str
    http_door: str
    folder: Path

    def connect(self, name: str) -> DataPlaneClient:
        return connect(
            self.address, transport=self.transport, timeout_s=20.0, session_grace_s=_GRACE_S, client_name=name
        )


class Worker:
    """What every kind of client has."""

    stop_file = "all"

    def __init__(self, place: Place, process: str) -> None:
        self.place, self.process = place, process
        self.dice = random.Random(process)
        self.turns = 0
        self.client = place.connect(process)
        self.ledger = Ledger(place.folder, process)  # its file says that this client is at work

    def run(self) -> None:
        """Until the stop file is there. A DataPlaneError of a turn goes into the ledger, and work goes on."""
        while not (self.place.folder / self.stop_file).exists():
            self.turns += 1
            try:
                self.turn()
            except (DataPlaneError, OSError) as error:
                self.ledger.note("error", type(error).__name__, str(error))
            time.sleep(self.dice.uniform(0.5, 1.5) * _TURN_S)
        self.client.close()

    def turn(self) -> None:
        raise NotImplementedError

    def names(self, count: int) -> list[str]:
        return [f"{self.process}-{self.turns}-{number}" for number in range(count)]


def tokens_of(row: str) -> torch.Tensor:
    number = zlib.crc32(row.encode())
    return torch.full((1 + number % 500,), number)


def columns_of(rows: list[str]) -> dict[str, torch.Tensor]:
    return {"tokens": nested_tensor([tokens_of(row) for row in rows], layout=torch.jagged)}


class Producer(Worker):
    """Puts rows, alone and in groups, some of which it aborts."""

    stop_file = "producers"

    def turn(self) -> None:
        if self.client.partition(PARTITION).rows > _BACKLOG_ROWS:
            return
        rows = self.names(self.dice.randint(1, 8))
        if self.dice.random() < 0.6:
            self.client.put_samples(rows, PARTITION, columns_of(rows))
        else:
            group = self.client.reserve_group(PARTITION, rows[0], rows)
            group.put(rows, columns_of(rows))
            if self.dice.random() < 0.1:
                group.abort("changed its mind")
                return
            group.commit()
        self.ledger.note("put", *rows)


class Consumer(Worker):
    """Claims rows, reads and checks them, commits; now and then releases them or drops the claim."""

    task = ""

    def turn(self) -> None:
        with contextlib.suppress(ClaimTimeoutError):
            claim = self.client.claim(PARTITION, self.task, TASKS[self.task], 8, min_size=1, timeout_s=1.0)
            self._check(claim)
            end = self.dice.random()
            if end < 0.05:
                claim.release(reason="" if end < 0.02 else "ill")
            elif end < 0.98:  # else the claim is dropped, and its rows go back
                self._commit(claim)

    def _check(self, claim: Claim) -> None:
        rows = claim.meta.sample_ids
        for row, tokens in zip(rows, self.client.get_data(claim.meta, ["tokens"])["tokens"].unbind(), strict=True):
            if not torch.equal(tokens, tokens_of(row)):
                self.ledger.note("error", row, "holds other tokens")

    def _commit(self, claim: Claim) -> None:
        rows = claim.meta.sample_ids
        self.ledger.note("try", self.task, *rows)
        claim.commit({"reward": torch.ones(len(rows))} if self.task == "score" else None)
        self.ledger.note("done", self.task, *rows)


class Scorer(Consumer):
    task = "score"


class Trainer(Consumer):
    task = "train"


class Visitor(Worker):
    """Connects anew each time, works in a partition of its own, and leaves: holding rows, or not."""

    def turn(self) -> None:
        with self.place.connect(f"{self.process}-visit") as client:
            client.register_partition(self.process, ["tokens"], 0, ["train"], per_token_fields=["tokens"])
            rows = self.names(3)
            client.put_samples(rows, self.process, columns_of(rows))
            claim = client.claim(self.process, "train", ["tokens"], 2)
            client.claims(self.process)
            if self.dice.random() < 0.5:
                claim.commit()
            if self.dice.random() < 0.5:
                client.drop_partition(self.process)


class Scraper(Worker):
    """Asks for metrics and health, puts rows as JSON, and breaks off connections in the middle of a request."""

    stop_file = "producers"

    def turn(self) -> None:
        for path in ("metrics", "healthz"):
            with urllib.request.urlopen(f"http://{self.place.http}/{path}", timeout=20) as answer:
                answer.read()
        (row,) = self.names(1)
        samples = [{"sample_id": row, "fields": {"tokens": tokens_of(row).tolist()}}]
        door = f"http://{self.place.http_door}/v1/partitions/{PARTITION}/samples"
        body = json.dumps({"samples": samples, "dtypes": {"tokens": "int64"}, "request_id": row}).encode()
        request = urllib.request.Request(door, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  # the scheme stands above
            answer.read()
        self.ledger.note("put", row)
        for address in (self.place.http, self.place.http_door):
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=20) as peer:
                peer.sendall(b"POST / HTTP/1.1\r\nContent-Le")
        time.sleep(10 * _TURN_S)


KINDS: dict[str, Callable[[Place, str], Worker]] = {
    kind.__name__.lower(): kind for kind in (Producer, Scorer, Trainer, Visitor, Scraper)
}


def live(kind: str, place: Place, process: str) -> None:
    """The life of a client process."""
    torch.set_num_threads(1)
    KINDS[kind](place, process).run()
