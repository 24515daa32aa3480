"""Claims that choose among a million rows.

A task claims the newest rows that fit a filter, while rows come; another task claims in order of arrival, with and
without claims of the choosy task beside it, in turn on one server: these differ only in what the choosy task costs
others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch

from dataplane_client import DataPlaneClient, Tag, connect
from report import Session, compare
from servers import server_process
from timing import Round, alternate, repeated, timed

AT_ONCE, CLAIMED = 10_000, 256
WHERE = "weight_version >= 3 and std > 0"


def measure(session: Session) -> None:
    rows, console = session.pick(1_000_000, 100_000), session.console
    with server_process("1GiB") as server, connect(server.unix) as client:
        client.register_partition("p", ["x"], 0, ["choosy", "plain"])
        for first in range(0, rows, AT_ONCE):
            put(client, first, AT_ONCE, version=first * 10 // rows)
        first_s = repeated(lambda: choosy(client), 1).median
        console.print(f"the first claim of its kind, which looks at all rows: {first_s * 1e3:.0f} ms")
        new = itertools.count(rows, 64)

        def beside(claim: Callable[[DataPlaneClient], None], other: Callable[[DataPlaneClient], None]) -> Round:
            def one() -> dict[str, float]:
                put(client, next(new), 64, version=10)
                other(client)
                return timed(claim=lambda: claim(client))

            return one

        turns = {
            "plain claims": beside(plain, lambda _: None),
            "plain claims, choosy claims beside them": beside(plain, choosy),
            "choosy claims": beside(choosy, lambda _: None),
        }
        compare(console, f"claims of {CLAIMED} of {rows:,} rows", alternate(turns, session.rounds(300), 3))


def put(client: DataPlaneClient, first: int, rows: int, version: int) -> None:
    ids = [f"s{row}" for row in range(first, first + rows)]
    spread = np.random.default_rng(first).random(rows) * (np.arange(rows) % 4 > 0)
    tags: list[dict[str, Tag]] = [{"weight_version": version, "std": std} for std in spread.tolist()]
    client.put_samples(ids, "p", {"x": torch.ones(rows)}, tags)


def choosy(client: DataPlaneClient) -> None:
    client.claim("p", "choosy", ["x"], CLAIMED, where=WHERE, order="newest_version").commit()


def plain(client: DataPlaneClient) -> None:
    client.claim("p", "plain", ["x"], CLAIMED).commit()
