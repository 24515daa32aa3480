"""The metrics of a client's calls, and its log events about the server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from prometheus_client import CollectorRegistry
from tests.waiting import eventually

from dataplane_client import aio, observe
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import ClaimTimeoutError, NotFoundError
from dataplane_client.options import TransportChoice
from dataplane_server.testing import ServerThread

Start = Callable[..., ServerThread]


def counted(registry: CollectorRegistry, verb: str, transport: TransportChoice, code: str = "OK") -> float:
    labels = {"verb": verb, "transport": transport, "code": code}
    return registry.get_sample_value("dataplane_client_calls_total", labels) or 0


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"dataplane_client_{name}", labels)


def test_calls_are_counted_by_verb_transport_and_code(
    registry: CollectorRegistry, client: DataPlaneClient, transport: TransportChoice
) -> None:
    client.register_partition("p", ["x"], 2, ["train"])
    client.put_samples(["a", "b"], "p", {"x": torch.zeros(2, 10)})
    for _ in range(3):
        client.get_samples(["a", "b"], "p", ["x"])
    with pytest.raises(NotFoundError):
        client.get_samples(["c"], "p", ["x"])
    with pytest.raises(ClaimTimeoutError):
        client.claim("p", "train", ["x"], 9, timeout_s=2.0)  # of which a busy machine may need much to open a session
    assert counted(registry, "PutSamples", transport) == 1
    assert counted(registry, "ReadColumns", transport) == 3
    assert counted(registry, "ReadColumns", transport, "NotFoundError") == 1
    assert counted(registry, "ClaimSamples", transport, "ClaimTimeoutError") == 1
    assert value(registry, "value_bytes_total", verb="PutSamples", transport=transport) == 80
    assert value(registry, "value_bytes_total", verb="ReadColumns", transport=transport) == 240
    assert value(registry, "call_seconds_count", verb="ReadColumns", transport=transport) == 4
    waited = value(registry, "call_seconds_sum", verb="ClaimSamples", transport=transport)
    assert waited is not None
    assert 0.05 <= waited < 10.0


@pytest.mark.parametrize("layout", ["jagged", "padded"])
@pytest.mark.parametrize("tokens", [10, 100_000])
def test_bytes_are_those_of_the_values_in_either_layout(
    registry: CollectorRegistry, client: DataPlaneClient, transport: TransportChoice, layout: str, tokens: int
) -> None:
    client.register_partition("p", ["x"], 1, ["train"])
    meta = client.put_samples(["a"], "p", {"x": torch.zeros(1, tokens)})
    client.read_columns(meta, ["x"], layout=layout)  # type: ignore[arg-type]  # one of two
    for verb in ("PutSamples", "ReadColumns"):
        assert value(registry, "value_bytes_total", verb=verb, transport=transport) == 4 * tokens


async def test_clients_of_one_process_share_their_counters(
    registry: CollectorRegistry, client: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    observe.count_calls(registry)  # a second call has no effect
    before = counted(registry, "GetServerStatus", transport)
    client.server_status()
    async with await aio.connect(address, transport=transport) as other:
        await other.server_status()
    assert counted(registry, "GetServerStatus", transport) == before + 3


def test_open_sessions_are_counted(registry: CollectorRegistry, client: DataPlaneClient) -> None:
    before = value(registry, "sessions")
    assert before is not None
    client.register_partition("p", ["x"], 1, ["train"])
    client.put_samples(["a"], "p", {"x": torch.zeros(1)})
    assert value(registry, "sessions") == before
    client.claim("p", "train", ["x"], 1)
    assert value(registry, "sessions") == before + 1
    client.close()
    eventually(lambda: value(registry, "sessions") == before)


def test_the_exported_metrics_are_those_of_the_list(registry: CollectorRegistry, client: DataPlaneClient) -> None:
    client.register_partition("p", ["x"], 1, ["train"])
    client.put_samples(["a"], "p", {"x": torch.zeros(1)})
    exported = {family.name: family for family in registry.collect()}
    assert exported.keys() == {metric.name.removesuffix("_total") for metric in observe.CLIENT_METRICS}
    for metric in observe.CLIENT_METRICS:
        family = exported[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.text)
        assert all(set(sample.labels) - {"le"} == set(metric.labels) for sample in family.samples)


@pytest.mark.parametrize("way", ["unix"])
def test_retries_are_counted_and_a_lost_and_found_server_is_logged_once_each(
    registry: CollectorRegistry, start_server: Start, listen: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dataplane_client"), ThreadPoolExecutor(1) as thread:
        connecting = thread.submit(connect, listen, max_backoff_s=0.05)
        while not value(registry, "retries_total", verb="GetServerStatus"):
            assert not connecting.done()
        start_server((listen,))
        with connecting.result(200) as client:
            client.partitions()
    reasons = [record for record in caplog.records if record.name == "dataplane_client"]
    assert [record.getMessage().split()[:2] for record in reasons] == [
        ["server_unreachable", f"server={listen}"],
        ["server_reached", f"server={listen}"],
    ]
    assert [record.levelname for record in reasons] == ["INFO", "INFO"]
