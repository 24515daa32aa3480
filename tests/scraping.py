"""What a server tells Prometheus."""

from __future__ import annotations

import urllib.request
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Scraped(Protocol):
    @property
    def http_address(self) -> str | None: ...


def families(server: Scraped) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://{server.http_address}/metrics", timeout=120) as response:
        return {family.name: family for family in text_string_to_metric_families(response.read().decode())}


def samples(server: Scraped, name: str = "", **labels: str) -> list[Sample]:
    """The samples of a name, or of all, that have these labels among theirs."""
    found = [sample for family in families(server).values() for sample in family.samples]
    return [one for one in found if name in ("", one.name) and labels.items() <= one.labels.items()]


def total(server: Scraped, name: str, **labels: str) -> float:
    return sum(sample.value for sample in samples(server, name, **labels))
