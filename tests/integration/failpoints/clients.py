"""Clients that work while their server dies and lives again, and what must be true of what they were told.

Rows of x and y are claimed, and committed or released. Of three rows of x alone, two are cleared. Each client holds a
claim from its first life to its last.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable

import torch

from dataplane_client.client import connect
from dataplane_client.errors import ClaimTimeoutError, DeadlineError, UnavailableError
from dataplane_client.options import TransportChoice

_TURNS_S = 100.0
_SET_UP_S = 120.0
_UNKNOWN = contextlib.suppress(DeadlineError, UnavailableError)


def value_of(row: str) -> torch.Tensor:
    """What a row holds, always: 1 to 3000 bytes."""
    number = zlib.crc32(row.encode())
    return torch.full((1 + number % 3000,), number % 251, dtype=torch.uint8)


class Told:
    """What clients asked for; the values of the dicts are whether it was answered."""

    def __init__(self) -> None:
        self.batches: dict[tuple[str, ...], bool] = {}
        self.cleared: dict[str, bool] = {}
        self.committed: dict[str, bool] = {}
        self.complaints: list[str] = []

    def check(self, address: str) -> None:
        """What was acknowledged is there with its bytes, what was not is there whole or not at all; books balance."""
        with connect(address, transport="shm") as client:
            described = client.partition("p")
            rows = client.list_samples("p", page_size=65536).meta.sample_ids
            values = client.get_samples(rows, "p", ["x"])["x"].unbind()
        there = set(rows)
        assert there <= {row for batch in self.batches for row in batch}
        for batch, answered in self.batches.items():
            stay = {row for row in batch if row not in self.cleared}
            assert stay <= there or (not answered and not stay & there), f"{batch}, answered: {answered}"
        assert not there & {row for row, answered in self.cleared.items() if answered}
        assert [row for row, value in zip(rows, values, strict=True) if not torch.equal(value, value_of(row))] == []
        assert described.rows == len(there) == described.rows_put_total - sum(described.removed_rows.values())
        for task in described.tasks:
            assert task.delivered_rows_total == task.claimed_rows + sum(task.ended_deliveries.values())
        consumed = described.tasks[0].consumed_rows
        assert sum(self.committed.values()) <= consumed <= len(self.committed)
        assert self.complaints == []


class Worker:
    """A client that works in a thread from `begin` on, which the context manager ends. timeout_s: of its calls; what is
    not answered by then may have happened or not.
    """

    def __init__(self, told: Told, address: str, transport: TransportChoice, timeout_s: float) -> None:
        self._told = told
        self._stopping = threading.Event()
        self.turns = 0
        self._name = f"{transport}-{timeout_s:g}"
        self._fence = 0
        self._client = connect(address, transport=transport, timeout_s=timeout_s, max_backoff_s=0.1)
        self._client.register_partition("p", ["x", "y"], 0, ["train", "hold"], timeout_s=_SET_UP_S)
        self._put("first", ["x", "y"], _SET_UP_S)
        self._held = self._client.claim("p", "hold", ["x", "y"], 1, timeout_s=_SET_UP_S)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._client.close()

    def begin(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """End its work, and see that it still holds what it held, and can commit that once."""
        self._stopping.set()
        self._thread.join()
        held = self._client.claims("p", "hold", timeout_s=_SET_UP_S).open
        assert self._held.claim_id in [claim.claim_id for claim in held]
        assert self._held.commit(timeout_s=_SET_UP_S) == 1

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
                self.turns += 1
        except BaseException as error:
            self._told.complaints.append(f"{self._name}: {error!r}")
            raise

    def _turn(self) -> None:
        self._put("whole", ["x", "y"])
        cleared = self._put("bare", ["x"])[:2]
        self._told.cleared.update(dict.fromkeys(cleared, False))
        with _UNKNOWN:
            self._client.clear_samples(cleared, "p")
            self._told.cleared.update(dict.fromkeys(cleared, True))
        with _UNKNOWN, contextlib.suppress(ClaimTimeoutError):
            self._consume()

    def _put(self, kind: str, fields: list[str], timeout_s: float | None = None) -> list[str]:
        rows = [f"{self._name}-{kind}-{self.turns}-{number}" for number in range(3)]
        self._told.batches[tuple(rows)] = False
        with _UNKNOWN:
            values = {field: [value_of(row) for row in rows] for field in fields}
            self._client.put_samples(rows, "p", values, timeout_s=timeout_s)
            self._told.batches[tuple(rows)] = True
        return rows

    def _consume(self) -> None:
        claim = self._client.claim("p", "train", ["x", "y"], 3, min_size=1, timeout_s=0.05)
        rows = claim.meta.sample_ids
        assert not [row for row in rows if self._told.committed.get(row)], f"of {rows} some were committed before"
        assert claim.fence > self._fence, "fences grow"
        self._fence = claim.fence
        values = self._client.get_data(claim.meta, ["x"])["x"].unbind()
        assert all(torch.equal(value, value_of(row)) for row, value in zip(rows, values, strict=True)), rows
        if self.turns % 4 == 3:
            claim.release()
            return
        for row in rows:
            self._told.committed.setdefault(row, False)
        assert claim.commit() == len(rows)
        self._told.committed.update(dict.fromkeys(rows, True))


def work_on(workers: list[Worker], turns: int, until: Callable[[], object] = lambda: True) -> None:
    """Wait until each worker has done so many more turns, and something holds."""
    goals = [worker.turns + turns for worker in workers]
    deadline = time.monotonic() + _TURNS_S
    while not (until() and all(worker.turns >= goal for worker, goal in zip(workers, goals, strict=True))):
        assert time.monotonic() < deadline, [worker.turns for worker in workers]
        time.sleep(0.005)
