"""Calls beside few and many resident rows: claims, and the rates of puts, reads and clears.

There is one server for each number of rows. Each round makes one call of each kind to each server. A call has 64 rows
of 32 bytes; a claim takes 16 of the oldest rows and releases them afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch

from dataplane_client import Claim, DataPlaneClient, connect
from report import Session, in_ms, in_times
from servers import server_process
from timing import Steps, alternate, timed

ROWS = (2_000, 10_000, 100_000, 1_000_000)
_FEW, _SOME, _, _MANY = ROWS
_ROUNDS, _BATCH, _CLAIMED, _WIDTH = 300, 64, 16, 8
_CLAIM_S, _CLAIM_GROWTH, _RATE_KEPT = 0.0007, 1.5, 0.8


def measure(session: Session) -> dict[int, Steps]:
    """Measure the goals on claims and rates. Returns the series by number of resident rows."""
    with ExitStack() as stack:
        rounds = {}
        for rows in ROWS:
            with session.phase(f"a server with {rows:,} rows"):
                rounds[f"{rows}"] = _SmallCalls(stack.enter_context(filled(rows, _WIDTH)))
        with session.phase("calls beside resident rows"):
            measured = alternate(rounds, session.rounds(_ROUNDS), 10 * session.warmups)
    session.keep("resident", measured)
    by_rows = {int(rows): steps for rows, steps in measured.items()}
    _goals(session, by_rows)
    return by_rows


class _SmallCalls:
    """One round: a small call of each kind."""

    def __init__(self, client: DataPlaneClient) -> None:
        self._client = client
        self._values = {"x": torch.rand(_BATCH, _WIDTH)}
        self._round = itertools.count()
        self._claims: list[Claim] = []

    def __call__(self) -> Mapping[str, float]:
        client, number = self._client, next(self._round)
        ids = [f"new_{row}_{number}" for row in range(_BATCH)]
        times = timed(
            put=lambda: client.put_samples(ids, "train", self._values),
            read=lambda: client.get_samples(ids, "train", ["x"]),
            claim=lambda: self._claims.append(client.claim("train", "task", ["x"], _CLAIMED)),
            clear=lambda: client.clear_samples(ids, "train"),
        )
        self._claims.pop().release()
        return times


@contextmanager
def filled(rows: int, width: int, at_once: int = 20_000) -> Iterator[DataPlaneClient]:
    """A client of a server process that holds `rows` rows of float32."""
    with server_process() as server, connect(server.unix) as client:
        client.register_partition("train", ["x"], 0, ["task"])
        for start in range(0, rows, at_once):
            ids = [f"old_{row}" for row in range(start, min(start + at_once, rows))]
            client.put_samples(ids, "train", {"x": torch.rand(len(ids), width)})
        yield client


def _goals(session: Session, by_rows: Mapping[int, Steps]) -> None:
    few, many = by_rows[_FEW]["claim"], by_rows[_MANY]["claim"]
    title = f"claim of {_CLAIMED} at {_FEW:,} rows: p50 at most {_CLAIM_S * 1e3:.1f} ms"
    session.goal(title, f"{in_ms(few)} ms", few.median <= _CLAIM_S, few.median)
    growth = many.median / few.median
    title = f"claim at {_MANY:,} rows: at most {_CLAIM_GROWTH} x that at {_FEW:,}"
    session.goal(title, f"{growth:.2f} x: {in_ms(many)} ms", growth <= _CLAIM_GROWTH, growth)
    for step in ("put", "read", "claim", "clear"):
        some, most = by_rows[_SOME][step], by_rows[_MANY][step]
        kept = some.median / most.median
        title = f"{step} rate at {_MANY:,} rows: at least {_RATE_KEPT:.0%} of that at {_SOME:,}"
        text = f"{kept:.0%}: {1 / most.median:.0f} against {1 / some.median:.0f} calls/s; by round"
        session.goal(title, f"{text} {in_times(some.over(most))}", kept >= _RATE_KEPT, kept)
