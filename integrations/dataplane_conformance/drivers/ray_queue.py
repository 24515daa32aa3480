"""`ray.util.queue.Queue`: one actor, which every client of a space shares by name.

Puts and claims of several rows are its batch calls, which are whole. Its bound is a number of items; values here are of
64 KiB where there is a budget. An item that was taken is gone: there is no lease and no commit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.queue import Empty, Full, Queue

from dataplane_conformance.drivers.bytes_of_rows import packed, unpacked
from dataplane_conformance.drivers.ray_host import RayHost, join
from dataplane_conformance.system import Claimed, Driver, Lack, Row, Space, Value, refused_by

_ITEM_BYTES = 64 << 10
_LOOK_S = 0.02


class _Client:
    def __init__(self, address: str, space: Space) -> None:
        join(address, "conformance")
        options = {"name": space.name, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0}
        queue = Queue(maxsize=(space.max_bytes or 0) // _ITEM_BYTES, actor_options=options)
        self._actor: Any = queue.actor
        self._claims: dict[str, list[tuple[str, bytes]]] = {}
        self._space = space

    def put(self, rows: Sequence[Row]) -> None:
        with refused_by(Full):
            self._answer(self._actor.put_nowait_batch.remote([(row.id, packed(row)) for row in rows]))

    def claim(self, task: str, n: int, wait_s: float, least: int) -> Claimed | None:
        until = time.monotonic() + wait_s
        while True:
            there = min(n, self._answer(self._actor.qsize.remote()))
            if there >= least:
                try:
                    items = self._answer(self._actor.get_nowait_batch.remote(there))
                except Empty:  # another client was faster
                    continue
                name = uuid.uuid4().hex
                self._claims[name] = items
                return Claimed(name, [row for row, _ in items])
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK_S)

    def read(self, claim: str) -> dict[str, dict[str, Value]]:
        """The items travelled with the claim."""
        return {row: unpacked(data) for row, data in self._claims[claim]}

    def commit(self, claim: str) -> None:
        """Taken items are gone."""

    def remove(self, ids: Sequence[str]) -> None:
        """Taken items are gone."""

    def _answer(self, reference: Any) -> Any:
        return ray.get(reference, timeout=self._space.call_s)


class RayQueue(RayHost, Driver):
    """A Ray of its own."""

    lacks: frozenset[Lack] = frozenset({"abandon", "counts", "disk", "groups", "ids", "lease", "staleness", "tasks"})
    connect = _Client
