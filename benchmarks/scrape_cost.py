"""The cost of a scrape of /metrics for a server with 1,000 partitions of 100 rows, with a task each.

Over HTTP: first unchanged, then after a put to every partition, which makes the server search for each task's oldest
row again. Shows the server's own time, during which its event loop does nothing else, and the time that the scraper
waited, beside prometheus_client, which writes the same samples in the same run, without collecting them.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterable, Sequence

import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dataplane_client import DataPlaneClient, connect
from report import Session, compare, in_ms
from servers import server_process
from timing import Series, Steps, repeated, seconds

GOAL_S = 0.020
REPEATS = 15
_OWN = re.compile(r"^dataplane_scrape_seconds (\S+)$", re.MULTILINE)


def measure(session: Session) -> None:
    with server_process() as server, connect(server.unix) as client:
        names = [f"train_v{number}" for number in range(session.pick(1000, 50))]
        for name in names:
            client.register_partition(name, ["x", "y"], 0, ["task"])
        put_to_each(client, names, 100)
        text = scraped(server.http)
        measured = {
            "prometheus_client": written_by_peer(text),
            "nothing changed": scrapes(server.http, int),
            "every partition changed": scrapes(server.http, lambda: put_to_each(client, names, 1)),
        }
    samples = sum(not line.startswith("#") for line in text.splitlines())
    compare(session.console, f"a scrape of {samples:,} samples", measured)
    took = measured["nothing changed"]["the server takes"]
    title = f"a scrape of {len(names):,} partitions: under {GOAL_S * 1e3:.0f} ms"
    session.goal(title, f"{in_ms(took)} ms", took.median < GOAL_S, took.median)


def put_to_each(client: DataPlaneClient, names: Sequence[str], rows: int) -> None:
    for name in names:
        ids, tags = [f"s{row}" for row in range(rows)], [{"weight_version": 1}] * rows
        client.put_samples(ids, name, {"x": torch.zeros(rows, 4)}, tags=tags)


def scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        text: str = response.read().decode()
    return text


def scrapes(address: str, between: Callable[[], object]) -> Steps:
    waits, own = [], []
    for _ in range(REPEATS):
        between()
        took, _ = seconds(lambda: scraped(address))
        waits.append(took)
        if (match := _OWN.search(scraped(address))) is not None:  # each scrape reports the time of the previous one
            own.append(float(match[1]))
    return {"the server takes": Series(tuple(own)), "the scraper waits": Series(tuple(waits))}


def written_by_peer(text: str) -> Steps:
    class Same(Collector):
        families: tuple[Metric, ...] = tuple(text_string_to_metric_families(text))

        def collect(self) -> Iterable[Metric]:
            return self.families

    registry = CollectorRegistry()
    registry.register(Same())
    times = repeated(lambda: generate_latest(registry), 5)
    return {"the server takes": times, "the scraper waits": times}
