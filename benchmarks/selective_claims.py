"""Measure claims that choose among a million rows: `python benchmarks/selective_claims.py`.

A task claims the newest rows that fit a filter, while rows come and others are claimed; another task claims in order of
arrival. p50 and p99 of its claims in milliseconds, with and without the choosy task at work beside it, in turn on one
server: these lines differ only in what the choosy task costs others. At last the trainer moves on, version by version,
while the choosy task has a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import quantiles

import numpy as np
import torch

from dataplane_client import DataPlaneClient, Tag, TaskPolicy, connect
from servers import server_process

ROWS, AT_ONCE, CLAIMED, CALLS = 1_000_000, 10_000, 256, 300
WHERE = "weight_version >= 3 and std > 0"


def main() -> None:
    with server_process("1GiB") as server, connect(server.unix) as client:
        client.register_partition("p", ["x"], 0, ["choosy", "plain"])
        began = time.perf_counter()
        for first in range(0, ROWS, AT_ONCE):
            put(client, first, AT_ONCE, version=first * 10 // ROWS)
        print(f"{ROWS:,} rows put in {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        choosy(client)
        print(f"the first claim of its kind, which looks at all rows: {(time.perf_counter() - began) * 1e3:.0f} ms")
        rows = iter(range(ROWS, 2 * ROWS, 64))

        def beside() -> None:
            put(client, next(rows), 64, version=10)
            choosy(client)

        tell(
            "choosy claims of 256 rows", timed(lambda: choosy(client), lambda: put(client, next(rows), 64, version=10))
        )
        for _ in range(2):
            tell(
                "plain claims, puts beside them", timed(lambda: plain(client), lambda: put(client, next(rows), 64, 10))
            )
            tell("plain claims, puts and choosy claims beside them", timed(lambda: plain(client), beside))
        client.set_policies("p", {"choosy": TaskPolicy(max_staleness=20)})
        versions = iter(range(11, 1000))
        tell("the trainer moves on, rows become stale", timed(lambda: move_on(client, next(versions)), int, calls=20))


def put(client: DataPlaneClient, first: int, rows: int, version: int) -> None:
    ids = [f"s{row}" for row in range(first, first + rows)]
    spread = np.random.default_rng(first).random(rows) * (np.arange(rows) % 4 > 0)
    tags: list[dict[str, Tag]] = [{"weight_version": version, "std": std} for std in spread.tolist()]
    client.put_samples(ids, "p", {"x": torch.ones(rows)}, tags)


def choosy(client: DataPlaneClient) -> None:
    client.claim("p", "choosy", ["x"], CLAIMED, where=WHERE, order="newest_version").commit()


def plain(client: DataPlaneClient) -> None:
    client.claim("p", "plain", ["x"], CLAIMED).commit()


def move_on(client: DataPlaneClient, version: int) -> None:
    client.set_weight_version("p", version)


def timed(claim: Callable[[], None], between: Callable[[], object], calls: int = CALLS) -> list[float]:
    """Milliseconds of each claim with its commit. Something else happens between two of them."""
    found = []
    for _ in range(calls):
        between()
        began = time.perf_counter()
        claim()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def tell(what: str, found: list[float]) -> None:
    percentiles = quantiles(found, n=100)
    print(f"{what:<50} p50 {percentiles[49]:6.2f} ms, p99 {percentiles[98]:6.2f} ms")


if __name__ == "__main__":
    main()
