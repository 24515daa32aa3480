"""The stall lab: flows that wait, each for another cause, which the call, the command and the metric name.

Real servers and clients. The calls that wait end when their clients are closed.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.client.cli.reading import run
from tests.scraping import samples
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import ClaimTimeoutError, NotFoundError, PartitionFullError
from dataplane_client.records.flow import DrawBand, FlowPolicy
from dataplane_client.records.tasks import TaskPolicy
from dataplane_server.testing import ServerThread

KIB = 1 << 10


@dataclass
class Lab:
    """A server with partition p (fields x and y, task train), and clients by name."""

    server: ServerThread
    threads: ThreadPoolExecutor
    running: contextlib.ExitStack
    kept: list[object] = field(default_factory=list)

    def client(self, name: str) -> DataPlaneClient:
        return self.running.enter_context(connect(self.server.addresses[0], client_name=name, timeout_s=30.0))

    def put(self, ids: str, *fields: str, who: str = "rollout", tags: dict[str, int] | None = None) -> None:
        """A row for each letter, by a client that stays."""
        columns = {name: [torch.zeros(1) for _ in ids] for name in fields or ("x",)}
        self.client(who).put_samples(list(ids), "p", columns, [dict(tags) for _ in ids] if tags else None)

    def holds(self, who: str, rows: int) -> None:
        """A claim that stays open."""
        self.kept.append(self.client(who).claim("p", "train", ["x"], rows))

    def claims(self, rows: int, *fields: str, who: str = "trainer", **more: object) -> None:
        """A claim that is to wait."""
        claim = self.client(who).claim
        self.threads.submit(claim, "p", "train", fields or ("x",), rows, **more)  # type: ignore[arg-type]

    def puts(self, *ids: str, size: int = 1) -> None:
        """A put that is to wait."""
        put, columns = self.client("rollout").put_samples, {"x": [torch.zeros(size) for _ in ids]}
        self.threads.submit(put, list(ids), "p", columns)


def open_lab(server: ServerThread, threads: ThreadPoolExecutor, running: contextlib.ExitStack) -> Lab:
    lab = Lab(server, threads, running)
    lab.client("driver").register_partition("p", ["x", "y"], 100, ["train"], max_deliveries=1)
    return lab


@pytest.fixture
def lab(start_server: Callable[..., ServerThread], threads: ThreadPoolExecutor) -> Iterator[Lab]:
    with contextlib.ExitStack() as running:
        server = start_server(http="127.0.0.1:0", memory_bytes=64 * KIB)
        yield open_lab(server, threads, running)


# -- claims ------------------------------------------------------------------------------------------------------------


def a_field_is_missing_and_its_producer_has_gone(lab: Lab) -> None:
    lab.put("abcdefgh", "x")
    with connect(lab.server.addresses[0], client_name="ref-policy-1") as policy:
        policy.claim("p", "train", ["x"], 1).commit({"y": torch.zeros(1)})
    lab.claims(7, "x", "y")


def rows_are_too_stale(lab: Lab) -> None:
    driver = lab.client("driver")
    lab.put("abcd", tags={"weight_version": 1})
    driver.set_policies("p", {"train": TaskPolicy(max_staleness=1)})
    driver.set_weight_version("p", 5)
    lab.claims(4)


def groups_are_not_finished(lab: Lab) -> None:
    lab.kept.append(lab.client("agent-7").reserve_group("p", "g", ["a", "b"]))
    lab.claims(1, whole_groups=True)


def another_client_holds_the_rows(lab: Lab) -> None:
    lab.put("abcd")
    lab.holds("eval", 4)
    lab.claims(4)


# -- puts, groups and draws --------------------------------------------------------------------------------------------


def the_partition_is_full_of_rows(lab: Lab) -> None:
    lab.client("driver").set_policies("p", flow=FlowPolicy(max_rows=2))
    lab.put("ab")
    lab.holds("trainer", 1)
    lab.puts("c")


def the_consumer_has_gone(lab: Lab) -> None:
    lab.client("driver").set_policies("p", flow=FlowPolicy(max_rows=2))
    lab.put("ab")
    with connect(lab.server.addresses[0], client_name="trainer") as trainer:
        trainer.claim("p", "train", ["x"], 1).release()
    lab.puts("c")


def the_weight_version_never_advances(lab: Lab) -> None:
    lab.client("driver").set_policies("p", {"train": TaskPolicy(max_staleness=0, rows_per_version=2)})
    lab.put("ab", tags={"weight_version": 1})
    lab.client("trainer").claim("p", "train", ["x"], 2).commit()
    lab.puts("c")


def draws_are_ahead_of_puts(lab: Lab) -> None:
    lab.client("driver").set_policies("p", flow=FlowPolicy(band=DrawBand(1.0, 0.0, 4.0)))
    lab.threads.submit(lab.client("learner").draw_samples, "p", ["x"], 1)


STALLS: list[tuple[Callable[[Lab], None], str, str]] = [
    (
        a_field_is_missing_and_its_producer_has_gone,
        "missing_field",
        "7 of 7 untaken rows lack field 'y'; it was last put 0.",
    ),
    (rows_are_too_stale, "stale_rows", "4 of 4 untaken rows are staler than max_staleness 1"),
    (groups_are_not_finished, "incomplete_groups", "the oldest, 'g', by client 'agent-7'"),
    (another_client_holds_the_rows, "claims_held", "4 rows are held by client 'eval'"),
    (the_partition_is_full_of_rows, "rows_budget", "2 of max_rows 2 rows are here"),
    (the_consumer_has_gone, "consumer_gone", "by 'trainer', whose session ended 0."),
    (the_weight_version_never_advances, "version_not_advanced", "more may come when the trainer sets"),
    (draws_are_ahead_of_puts, "draw_band", "would be below the band's 0"),
]


def waiting_causes(server: ServerThread) -> dict[tuple[str, str, str], float]:
    found = samples(server, "dataplane_waiting_cause")
    return {(one.labels["partition"], one.labels["task"], one.labels["cause"]): one.value for one in found}


def test_a_healthy_flow_has_nothing_that_waits(lab: Lab) -> None:
    trainer = lab.client("trainer")
    for ids in ("ab", "cd"):
        lab.put(ids)
        trainer.claim("p", "train", ["x"], 2).commit()
    lab.put("ef")
    assert trainer.why().waits == trainer.why("p").waits == trainer.why("p", "train").waits == []
    assert run("why", "-s", trainer.target) == run("why", "p", "train", "-s", trainer.target) == (0, "nothing waits\n")
    assert waiting_causes(lab.server) == {}


def test_waits_of_a_healthy_flow_are_listed_once_they_last(lab: Lab) -> None:
    engineer = lab.client("engineer")
    lab.claims(8)
    eventually(lambda: engineer.why().waits)
    text = run("why", "-s", engineer.target)[1]
    if (engineer.why().waits[0].age_s or 0.0) < 2.0:  # a busy machine may have taken longer
        said = "nothing waits for 2 s or longer\n1 wait of less than 2 s: --all lists them too\n"
        assert (text, "never_put" in run("why", "--all", "-s", engineer.target)[1]) == (said, True)
    eventually(lambda: "p, train  never_put" in run("why", "-s", engineer.target)[1])


def test_an_error_names_the_cause_that_the_call_named(lab: Lab) -> None:
    lab.put("abcd")
    with pytest.raises(ClaimTimeoutError, match=r"4 of 4 .*'y'") as timeout:
        lab.client("trainer").claim("p", "train", ["x", "y"], 4, timeout_s=0.2)
    assert timeout.value.details["cause"] == "missing_field"
    lab.client("driver").set_policies("p", flow=FlowPolicy(max_rows=4))
    with pytest.raises(PartitionFullError, match=r"4 of max_rows 4 .*'train' .*4 rows") as full:
        lab.client("rollout").put_samples(["e"], "p", {"x": [torch.zeros(1)]}, timeout_s=0.2)
    assert full.value.details["cause"] == "consumer_gone"


def test_a_server_that_is_not_healthy_says_so_to_all_who_ask(lab: Lab) -> None:
    engineer = lab.client("engineer")

    def told() -> tuple[tuple[str, ...], str, set[str]]:
        """The verdict of the status, of /healthz, and of the metric."""
        with urllib.request.urlopen(f"http://{lab.server.http_address}/healthz", timeout=200) as answer:
            health = answer.read().decode()
        found = {one.labels["reason"] for one in samples(lab.server, "dataplane_unhealthy") if one.value}
        return engineer.server_status().unhealthy, health, found

    assert (told(), of_page(lab.server, "server")["unhealthy"]) == (((), "ok\n", set()), [])
    lab.client("rollout").put_samples(["a"], "p", {"x": [torch.zeros(63 * KIB // 4)]})
    lab.puts("b", size=KIB)
    eventually(lambda: engineer.server_status().waiting_puts)
    reasons, health, found = told()
    assert (len(reasons), "1 put waits for space" in reasons[0]) == (1, True)
    assert (health, found) == (f"not healthy\n{reasons[0]}\n", {"memory_full"})
    assert of_page(lab.server, "server", lambda says: says["unhealthy"])["unhealthy"] == list(reasons)
    assert run("status", "-s", engineer.target)[0] == 3


def of_page(server: ServerThread, part: str, fits: Callable[[Any], object] = lambda says: True) -> Any:
    """What the page says of a part, as soon as it fits. A stream ends after some seconds; another goes on."""
    while True:
        with urllib.request.urlopen(f"http://{server.http_address}/page/events", timeout=200) as events:
            for line in events:
                told = json.loads(line[5:]) if line.startswith(b"data:") else {"part": ""}
                if told["part"] == part and fits(told["says"]):
                    return told["says"]


def test_a_partition_that_is_not_there_is_an_error(lab: Lab) -> None:
    with pytest.raises(NotFoundError, match="'q'"):
        lab.client("engineer").why("q")
    code, text = run("why", "p", "q", "-s", lab.server.addresses[0])
    assert (code, "no task 'q'" in text) == (1, True)
