"""Clears beside readers that hold rows: rows are put, read as views that are kept, and cleared under them.

Each round clears 2,000 rows that a reader holds, and 2,000 other rows, picked at random, that no reader holds. A reader
keeps its views for the following rounds, so dozens of cleared batches are held at any time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from dataplane_client import BatchedDataDict, DataPlaneClient, connect
from report import Session, in_ms
from servers import server_process
from timing import alternate, timed

_FIELDS = tuple(f"field_{number}" for number in range(10))
_RESIDENT, _CLEARED, _HELD, _ROUNDS = 40_000, 2_000, 40, 120
_CLEAR_S = 0.010
_CLEARS = {"held": "that are being read", "apart": "picked at random"}


def measure(session: Session) -> None:
    """Measure clears while readers hold rows, and check that the budget held."""
    with session.phase("clears beside slow readers"), server_process("1GiB") as server, connect(server.unix) as client:
        rounds = _Rounds(client)
        measured = alternate({"slow readers": rounds}, session.rounds(_ROUNDS), _HELD)
        kept = rounds.most_used <= client.server_status().memory_budget_bytes
    session.keep("slow_readers", measured)
    for step, which in _CLEARS.items():
        cleared = measured["slow readers"][step]
        title = f"clear of {_CLEARED:,} rows {which}, beside {_HELD} readers that hold rows: under 10 ms"
        text = f"{in_ms(cleared)} ms; budget {'held' if kept else 'exceeded'}"
        session.goal(title, text, cleared.median < _CLEAR_S and kept, cleared.median)


class _Rounds:
    """One round of two clears."""

    def __init__(self, client: DataPlaneClient) -> None:
        self.most_used = 0
        self._client = client
        self._held: deque[BatchedDataDict[Any]] = deque(maxlen=_HELD)
        self._number = 0
        self._resident: list[str] = []
        client.register_partition("train", _FIELDS, 0, ["task"])
        while len(self._resident) < _RESIDENT:
            self._resident += self._put()
        self._chance = random.Random(0)

    def __call__(self) -> Mapping[str, float]:
        client, ids = self._client, self._put()
        meta = client.put_samples(ids, "train").with_fields(_FIELDS)
        self._held.append(client.read_columns(meta, _FIELDS, layout="jagged"))
        self._chance.shuffle(self._resident)
        others, self._resident = self._resident[:_CLEARED], self._resident[_CLEARED:]
        self.most_used = max(self.most_used, client.server_status().memory_used_bytes)
        times = timed(
            held=lambda: client.clear_samples(ids, "train"), apart=lambda: client.clear_samples(others, "train")
        )
        self._resident += self._put()
        return times

    def _put(self) -> list[str]:
        self._number += 1
        ids = [f"{self._number}_{row}" for row in range(_CLEARED)]
        values = {name: torch.full((_CLEARED, 8), float(self._number)) for name in _FIELDS}
        self._client.put_samples(ids, "train", values)
        return ids
