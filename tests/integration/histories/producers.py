"""Producers: groups of rows that are finished, aborted or left alone, and rows of no group.

What a row holds tells whose it is, so that whoever reads another row's bytes notices.
"""

from __future__ import annotations

import contextlib
import random
import time
import zlib
from collections.abc import Sequence

import torch
from tests.integration.histories.recorder import Recorder
from tests.integration.histories.settings import FIELDS, PARTITION
from torch.nested import nested_tensor

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import DataPlaneError

_BACKLOG = 600
"""Rows that no task has taken yet, beyond which producers pause."""


def tokens_of(row: str) -> list[int]:
    """What a row holds, always."""
    number = zlib.crc32(row.encode())
    return [number] * (1 + number % 40)


def _values(rows: Sequence[str]) -> dict[str, torch.Tensor]:
    nobody = {name: torch.full((len(rows),), -1) for name in FIELDS if name not in ("tokens", "prompt")}
    return {"tokens": nested_tensor([torch.tensor(tokens_of(row)) for row in rows], layout=torch.jagged), **nobody}


class Producer:
    """Puts rows until a time."""

    def __init__(self, client: DataPlaneClient, record: Recorder, chance: random.Random) -> None:
        self._client = client
        self._record = record
        self._chance = chance
        self._batches = 0

    def produce(self, until: float) -> None:
        while time.monotonic() < until:
            with contextlib.suppress(DataPlaneError):  # it stands in the record
                self._turn()
            time.sleep(self._chance.uniform(0.02, 0.1))

    def _turn(self) -> None:
        self._batches += 1
        name = f"{self._record.process}-{self._batches}"
        rows = [f"{name}-{number}" for number in range(self._chance.randint(1, 6))]
        if self._batches % 8 == 0:
            self._rest()
        if self._chance.random() < 0.25:
            self._put(rows)
        else:
            self._put_group(name, rows)

    def _rest(self) -> None:
        tasks = self._client.partition(PARTITION).tasks
        if max(task.untaken_rows for task in tasks) > _BACKLOG:
            time.sleep(0.5)

    def _put(self, rows: list[str]) -> None:
        values = _values(rows) | {"prompt": torch.zeros(len(rows), 1)}
        with self._record.call("put", rows=rows):
            self._client.put_samples(rows, PARTITION, values)

    def _put_group(self, name: str, rows: list[str]) -> None:
        with self._record.call("reserve", group=name, rows=rows):
            group = self._client.reserve_group(PARTITION, name, rows, weight_version=self._batches)
        half = self._chance.randint(0, len(rows))
        for part in filter(None, (rows[:half], rows[half:])):
            with self._record.call("fill", group=name):
                group.put(part, _values(part))
            time.sleep(self._chance.uniform(0.0, 0.02))
        with self._record.call("fill", group=name):
            group.put_shared({"prompt": torch.tensor([[float(self._batches)]])})
        end = self._chance.random()
        if end < 0.1:
            with self._record.call("abort", group=name):
                group.abort("changed its mind")
        elif end < 0.95:
            with self._record.call("finish", group=name):
                group.commit(weight_version=self._batches + 1)
