"""Measure the cost of a scrape of /metrics for a server with many partitions.

    python benchmarks/scrape_cost.py [--partitions N] [--tasks N] [--rows N]

Scrapes a server process with the given numbers of partitions, tasks and rows over HTTP: first unchanged, then after a
put to every partition, which makes the server search for each task's oldest row again. Prints the server's own time,
during which its event loop does nothing else, and the time that the scraper waited. For comparison, prometheus_client
writes the same samples in the same run.

Goal: 1,000 partitions take less than 20 ms.
"""

from __future__ import annotations

import argparse
import platform
import re
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterable

import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from rich.console import Console
from rich.table import Table

from dataplane_client import connect
from dataplane_client._sync.client import DataPlaneClient
from servers import server_process

GOAL_MS = 20.0
REPEATS = 15
_OWN = re.compile(r"^dataplane_scrape_seconds (\S+)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1, help="in each partition")
    parser.add_argument("--rows", type=int, default=100, help="in each partition")
    options = parser.parse_args()
    console = Console()
    console.print(f"{platform.machine()}, Python {platform.python_version()}")
    with server_process() as server, connect(server.unix) as client:
        names = [f"train_v{number}" for number in range(options.partitions)]
        _fill(client, names, options.tasks, options.rows)
        text = _scraped(server.http)
        quiet = _timed(server.http, lambda: None)
        changed = _timed(server.http, lambda: _put_to_each(client, names))
    console.print(_table(text, quiet, changed, _peer_ms(text)))
    met = statistics.median(own for own, _ in quiet) < GOAL_MS
    console.print(f"goal {GOAL_MS:.0f} ms at 1,000 partitions: {'met' if met else 'not met'}")


def _fill(client: DataPlaneClient, names: Iterable[str], tasks: int, rows: int) -> None:
    ids = [f"s{row}" for row in range(rows)]
    for name in names:
        client.register_partition(name, ["x", "y"], 0, [f"task{number}" for number in range(tasks)])
        client.put_samples(ids, name, {"x": torch.zeros(rows, 4)}, tags=[{"weight_version": 1}] * rows)


def _put_to_each(client: DataPlaneClient, names: Iterable[str]) -> None:
    for name in names:
        client.put_samples(["s0"], name, {"x": torch.zeros(1, 4)}, tags=[{"weight_version": 1}])


def _scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        text: str = response.read().decode()
    return text


def _timed(address: str, between: Callable[[], None]) -> list[tuple[float, float]]:
    """Milliseconds that the server took, and that the scraper waited, for several scrapes."""
    waits, texts = [], []
    for _ in range(REPEATS):
        between()
        began = time.perf_counter()
        texts.append(_scraped(address))
        waits.append((time.perf_counter() - began) * 1e3)
    texts.append(_scraped(address))  # each scrape reports the time of the previous one
    own = [float(match[1]) * 1e3 for text in texts[1:] if (match := _OWN.search(text)) is not None]
    return list(zip(own, waits, strict=True))


def _peer_ms(text: str) -> float:
    """Milliseconds in which prometheus_client writes the same samples, without collecting them."""

    class Same(Collector):
        families: tuple[Metric, ...] = tuple(text_string_to_metric_families(text))

        def collect(self) -> Iterable[Metric]:
            return self.families

    registry = CollectorRegistry()
    registry.register(Same())
    times = []
    for _ in range(5):
        began = time.perf_counter()
        generate_latest(registry)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def _table(text: str, quiet: list[tuple[float, float]], changed: list[tuple[float, float]], peer_ms: float) -> Table:
    samples = sum(not line.startswith("#") for line in text.splitlines())
    table = Table("of one scrape", "median, ms", "least", "most", "against prometheus_client", box=None)
    for title, rows in (("nothing changed", quiet), ("every partition changed", changed)):
        for what, column in (("the server took", 0), ("the scraper waited", 1)):
            times = [row[column] for row in rows]
            median = statistics.median(times)
            ratio = f"{median / peer_ms:.2f}x"
            table.add_row(f"{title}: {what}", f"{median:.1f}", f"{min(times):.1f}", f"{max(times):.1f}", ratio)
    table.add_row(f"prometheus_client writes the same {samples:,} samples", f"{peer_ms:.1f}", "", "", "1.00x")
    return table


if __name__ == "__main__":
    main()
