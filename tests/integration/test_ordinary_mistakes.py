"""The ordinary mistakes of a training job: call, page, metric and alert name the same party, and no other.

A real server and real clients. The alert is what the rules make of the server's own series if nothing changes for a
quarter of an hour, which promtool computes.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from scripts.prometheus_server import find_command
from tests.client.cli.reading import run, run_json
from tests.deploy.monitoring.rule_files import RULE_FILES
from tests.integration.test_stall_lab import (
    Lab,
    a_field_is_missing_and_its_producer_has_gone,
    another_client_holds_the_rows,
    groups_are_not_finished,
    of_page,
    open_lab,
    rows_are_too_stale,
    the_consumer_has_gone,
)
from tests.scraping import samples
from tests.waiting import eventually

from dataplane_client.client import connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

FACTS = (
    "dataplane_waiting_cause",
    "dataplane_client_held_bytes",
    "dataplane_memory_budget_bytes",
)
SAMPLE, LABEL = re.compile(r"\{([^}]*alertname[^}]*)\}"), re.compile(r'(\w+)="([^"]*)"')
"""As promtool prints them."""
SECONDS = "dataplane_task_state_seconds_total"
DRAWN = "dataplane_drawn_rows_total"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Clients share the server's memory, as on the host of a trainer."""
    listen = (f"unix://{tmp_path}/dp.sock",)
    config = ServerConfig(listen=listen, http="127.0.0.1:0", limits=Limits(memory_bytes=8 << 20))
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as running:
        server = ServerThread(config)
        running.callback(server.stop)
        yield open_lab(server, threads, running)


def a_reader_keeps_views_of_rows_that_were_cleared(lab: Lab) -> None:
    reader = lab.client("reader-7")
    meta = lab.client("driver").put_samples(["a"], "p", {"x": [torch.zeros(5 << 18)]})
    lab.kept.append(reader.read_columns(meta, ["x"], layout="jagged"))
    reader.clear_samples(["a"], "p")
    lab.claims(1)
    lab.puts("b", size=1 << 20)


def the_consumer_has_gone_and_nothing_bounds_the_rows(lab: Lab) -> None:
    lab.put("ab")
    with connect(lab.server.addresses[0], client_name="trainer") as trainer:
        trainer.claim("p", "train", ["x"], 1).release()


def the_filter_names_a_field(lab: Lab) -> None:
    lab.put("ab")
    lab.claims(2, where="x > 0")


def a_rank_never_comes(lab: Lab) -> None:
    lab.put("abcd")
    claim_shard = lab.client("rank-0").claim_shard
    lab.kept.append(claim_shard("p", "train", ["x"], 4, step=0, dp_rank=0, dp_world=2))
    lab.threads.submit(claim_shard, "p", "train", ["x"], 4, step=1, dp_rank=0, dp_world=2)


def a_large_put_waits_for_memory_and_a_small_one_passes_it(lab: Lab) -> None:
    driver, engineer = lab.client("driver"), lab.client("engineer")
    driver.register_partition("q", ["x"], 1, ["train"])
    driver.put_samples(["a"], "p", {"x": [torch.zeros(5 << 18)]})
    lab.holds("trainer", 1)
    lab.puts("b", size=1 << 20)
    eventually(lambda: engineer.server_status().waiting_puts)
    lab.client("eval").put_samples(["c"], "q", {"x": [torch.zeros(1)]})


class Told(NamedTuple):
    """The party by its cause, a word of the sentence, and the alert with the labels that say whose it is."""

    cause: str
    words: str
    alert: str
    labels: dict[str, str]


TRAIN = {"partition": "p", "task": "train"}
MISTAKES: list[tuple[Callable[[Lab], None], Told]] = [
    (a_field_is_missing_and_its_producer_has_gone, Told("missing_field", "by 'ref-policy-1'", "TaskHeld", TRAIN)),
    (rows_are_too_stale, Told("stale_rows", "max_staleness 1", "TaskHeld", TRAIN)),
    (groups_are_not_finished, Told("incomplete_groups", "'g', by client 'agent-7'", "TaskHeld", TRAIN)),
    (
        a_reader_keeps_views_of_rows_that_were_cleared,
        Told("memory_held", "'reader-7'", "ClientHoldsMemory", {"client": "reader-7"}),
    ),
    (the_consumer_has_gone, Told("consumer_gone", "task 'train'", "WritesHeld", {"partition": "p"})),
    (
        the_consumer_has_gone_and_nothing_bounds_the_rows,
        Told("consumer_gone", "by 'trainer'", "ConsumerMissing", TRAIN),
    ),
    (
        a_large_put_waits_for_memory_and_a_small_one_passes_it,
        Told("memory_budget", "held by client 'trainer'", "RolloutsBackpressured", {"partition": "p"}),
    ),
    (another_client_holds_the_rows, Told("claims_held", "by client 'eval'", "TaskHeld", TRAIN)),
    (the_filter_names_a_field, Told("claim_filter", "'x' is a field", "TaskHeld", TRAIN)),
    (a_rank_never_comes, Told("rank_missing", "rank 1 of 2", "TaskHeld", TRAIN)),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES, ids=[row[0].__name__ for row in MISTAKES])
def test_call_page_metric_and_alert_name_the_party(
    lab: Lab, tmp_path: Path, mistake: Callable[[Lab], None], told: Told
) -> None:
    engineer = lab.client("engineer")
    mistake(lab)
    at_rest = told.alert == "ConsumerMissing"
    eventually(lambda: told.cause in [wait.causes[0].cause for wait in engineer.why("p").waits[:1]])
    root = engineer.why("p").waits[0]
    assert (root.causes[0].cause, root.behind, told.words in root.summary) == (told.cause, None, True)
    assert {wait.behind for wait in engineer.why().waits[1:]} <= {0}
    lines = run("why", "p", "--all", "-s", engineer.target, COLUMNS="80")[1].splitlines()
    assert told.cause in lines[int(at_rest)]
    assert [line for line in lines if len(line) > 80] == []
    assert "  next: " + root.causes[0].next_step.split()[0] in "\n".join(lines)
    assert run_json("why", "p", "-s", engineer.target)["waits"][0]["causes"][0]["cause"] == told.cause

    if at_rest:
        (task,) = of_page(lab.server, "partition p")["tasks"]
        assert (task["state"], samples(lab.server, "dataplane_waiting_cause")) == ("waiting_for_consumers", [])
    else:
        says = of_page(lab.server, "waits", lambda says: says["waits"] and says["waits"][0]["summary"])
        assert says["waits"][0]["causes"][0]["cause"] == told.cause
        causes = {one.labels["cause"] for one in samples(lab.server, "dataplane_waiting_cause")}
        assert causes == {told.cause}

    promtool = find_command("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on PATH or in the environment: what would ring is not looked at")
    ringing = alerts(lab.server, promtool, tmp_path)
    assert (f"Dataplane{told.alert}", told.labels) in ringing
    assert "DataplaneTrainerStarved" not in {name for name, _ in ringing}


def test_rows_that_are_drawn_need_no_consumer(lab: Lab, tmp_path: Path) -> None:
    lab.put("ab")
    lab.client("learner").draw_samples("p", ["x"], 1, task_name="train", seed=0)
    (drawn,) = samples(lab.server, DRAWN)
    assert (drawn.value, drawn.labels["partition"]) == (1, "p")
    promtool = find_command("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on PATH or in the environment: what would ring is not looked at")
    assert alerts(lab.server, promtool, tmp_path) == []


def alerts(server: ServerThread, promtool: Path, folder: Path) -> list[tuple[str, dict[str, str]]]:
    """The alerts that ring if the server's series go on for 15 minutes as now, with the labels that name a party."""
    values = [(one.name, one.labels, f"{one.value:.0f}x20") for name in FACTS for one in samples(server, name)]
    values += [(one.name, one.labels, f"0+{one.value:.0f}x20") for one in samples(server, DRAWN)]
    before = {one.labels["state"]: one.value for one in samples(server, SECONDS)}
    spent = [(one.value - before[one.labels["state"]], one.labels) for one in samples(server, SECONDS)]
    now = max(spent, key=lambda pair: pair[0])[1]["state"]
    values += [(SECONDS, labels, "0+60x20" if labels["state"] == now else "0x20") for _, labels in spent]
    case = {
        "interval": "1m",
        "input_series": [
            {
                "series": f"{name}{{{','.join(f'{key}={json.dumps(text)}' for key, text in labels.items())}}}",
                "values": told,
            }
            for name, labels, told in values
        ],
        "promql_expr_test": [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": "15m", "exp_samples": []}],
    }
    path = folder / "case.yaml"
    path.write_text(yaml.dump({"rule_files": list(map(str, RULE_FILES)), "evaluation_interval": "1m", "tests": [case]}))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, timeout=300, check=False)
    found = [dict(LABEL.findall(sample)) for sample in SAMPLE.findall(done.stdout + done.stderr)]
    whose = ("partition", "task", "client")
    return [(one["alertname"], {name: one[name] for name in whose if name in one}) for one in found]
