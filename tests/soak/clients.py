"""Clients that only a soak has, beside those of every campaign (`tests.integration.histories`): visitors and scrapers.

Each is a process that does one kind of work, turn by turn, in a partition of its own, until it is told to stop.
"""

from __future__ import annotations

import json
import random
import socket
import time
import traceback
import urllib.request
from dataclasses import dataclass, replace

import torch
from tests.integration.histories import zygote
from tests.integration.histories.producers import tokens_of
from tests.integration.histories.recorder import Recorder
from tests.integration.histories.settings import STOP_FILE, Settings

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError

_TURN_S = 0.02


@dataclass(frozen=True)
class Place:
    """Where clients work. settings: of the campaign, with the address and transport of this client. http, http_door: of
    the server. until: when producers and scrapers end.
    """

    settings: Settings
    http: str
    http_door: str
    until: float

    def by(self, address: str, transport: str) -> Place:
        return replace(self, settings=replace(self.settings, address=address, transport=transport))


class Worker:
    """What both kinds have."""

    def __init__(self, place: Place, process: str) -> None:
        self.place, self.process = place, process
        self.dice = random.Random(process)
        self.turns = 0
        self.record = Recorder(place.settings.folder, process)
        self.client = self.connect()
        self.client.register_partition(process, ["tokens"], 0, ["train"], per_token_fields=["tokens"])

    def connect(self) -> DataPlaneClient:
        settings = self.place.settings
        return connect(settings.address, **settings.options(0, self.process))

    def run(self) -> None:
        """Until all are told to stop. What goes wrong in a turn is in the record, and work goes on."""
        while not (self.place.settings.folder / STOP_FILE).exists():
            self.turns += 1
            try:
                self.turn()
            except (DataPlaneError, OSError):
                self.record.note("complaint", text=traceback.format_exc())
            time.sleep(self.dice.uniform(0.5, 1.5) * _TURN_S)
        self.client.close()

    def turn(self) -> None:
        raise NotImplementedError

    def names(self, count: int) -> list[str]:
        return [f"{self.process}-{self.turns}-{number}" for number in range(count)]


class Visitor(Worker):
    """Connects anew each time, works, and leaves: holding rows, or not."""

    def turn(self) -> None:
        with self.connect() as client:
            client.register_partition(self.process, ["tokens"], 0, ["train"], per_token_fields=["tokens"])
            rows = self.names(3)
            client.put_samples(rows, self.process, {"tokens": [torch.tensor(tokens_of(row)) for row in rows]})
            claim = client.claim(self.process, "train", ["tokens"], 2)
            client.claims(self.process)
            if self.dice.random() < 0.5:
                claim.commit()
            if self.dice.random() < 0.5:
                client.drop_partition(self.process)


class Scraper(Worker):
    """Asks for metrics and health, puts rows as JSON, takes them, and breaks off connections in the middle of a
    request.
    """

    def turn(self) -> None:
        for path in ("metrics", "healthz"):
            with urllib.request.urlopen(f"http://{self.place.http}/{path}", timeout=20) as answer:
                answer.read()
        (row,) = self.names(1)
        samples = [{"sample_id": row, "fields": {"tokens": tokens_of(row)}}]
        door = f"http://{self.place.http_door}/v1/partitions/{self.process}/samples"
        body = json.dumps({"samples": samples, "dtypes": {"tokens": "int64"}, "request_id": row}).encode()
        request = urllib.request.Request(door, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  # the scheme stands above
            answer.read()
        claim = self.client.claim(self.process, "train", ["tokens"], 1)
        found = self.client.get_data(claim.meta, ["tokens"])["tokens"].unbind()
        if (claim.meta.sample_ids, [tokens.tolist() for tokens in found]) != ([row], [tokens_of(row)]):
            self.record.note("complaint", text=f"{row} came back as {claim.meta.sample_ids} with {found}")
        claim.commit()
        self.client.clear_samples([row], self.process)
        for address in (self.place.http, self.place.http_door):
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=20) as peer:
                peer.sendall(b"POST / HTTP/1.1\r\nContent-Le")
        time.sleep(10 * _TURN_S)


KINDS = {kind.__name__.lower(): kind for kind in (Visitor, Scraper)}


def live(kind: str, place: Place, process: str) -> None:
    """The life of a client process. kind: of those here, or a slot of a campaign."""
    torch.set_num_threads(1)
    if kind in KINDS:
        KINDS[kind](place, process).run()
    else:
        zygote.live(place.settings, int(kind), process, place.until)
