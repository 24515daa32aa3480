"""What Prometheus is told: counters move with the calls, and names follow its conventions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from prometheus_client import Metric
from tests.scraping import families, samples, total
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import NotFoundError
from dataplane_client.options import TransportChoice
from dataplane_client.records.tasks import TaskPolicy
from dataplane_server.observe.catalog import CATALOG
from dataplane_server.testing import ServerThread
from dataplane_server.version import VERSION

FIELDS = {"x": torch.zeros(4, 10), "y": torch.zeros(4)}
IDS = ["a", "b", "c", "d"]
BYTES = 4 * 11 * 4


@pytest.fixture(params=["grpc", "shm"])
def way(request: pytest.FixtureRequest) -> str:
    """The kind of socket does not show."""
    return str(request.param)


@pytest.fixture
def server(start_server: Callable[..., ServerThread]) -> ServerThread:
    return start_server(http="127.0.0.1:0", memory_bytes=1 << 20)


@pytest.fixture
def flow(server: ServerThread, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    with connect(server.addresses[0], timeout_s=200.0, transport=transport) as client:
        client.register_partition("p", ["x", "y"], 4, ["train"])
        yield client


@pytest.fixture
def after_traffic(server: ServerThread, flow: DataPlaneClient) -> ServerThread:
    """A server that has seen a put, a read, a claim with commit, a clear of one row, and a refusal."""
    flow.put_samples(IDS, "p", FIELDS, once=["y"])
    flow.get_samples(IDS[:2], "p", ["x"])
    flow.claim("p", "train", ["x"], 3).commit({"y": torch.zeros(3)})
    flow.clear_samples(["a"], "p")
    with pytest.raises(NotFoundError):
        flow.get_samples(["gone"], "p", ["x"])
    return server


STATES = {"untaken": 1, "claimed": 0, "consumed": 2, "delayed": 0, "dead": 0}
P, TASK = {"partition": "p"}, {"partition": "p", "task": "train"}
MOVED: list[tuple[str, dict[str, str], float]] = [
    ("dataplane_puts_total", P, 1),
    ("dataplane_put_rows_total", P, 4),
    ("dataplane_put_bytes_total", P, BYTES),
    ("dataplane_deduplicated_bytes_total", P, 3 * 4),
    ("dataplane_reads_total", P, 1),
    ("dataplane_read_rows_total", P, 2),
    ("dataplane_read_bytes_total", P, 2 * 10 * 4),
    ("dataplane_claims_total", TASK, 1),
    ("dataplane_task_claim_wait_seconds_total", TASK, 0),
    ("dataplane_commits_total", TASK, 1),
    ("dataplane_commit_bytes_total", TASK, 3 * 4),
    ("dataplane_claim_wait_seconds_count", {}, 1),
    ("dataplane_clears_total", P, 1),
    ("dataplane_rows_put_total", P, 4),
    ("dataplane_rows_removed_total", {**P, "reason": "consumed"}, 1),
    ("dataplane_rows_consumed_total", TASK, 3),
    ("dataplane_row_deliveries_total", TASK, 3),
    ("dataplane_row_deliveries_ended_total", {**TASK, "how": "committed"}, 3),
    ("dataplane_rows", P, 3),
    ("dataplane_stored_bytes", P, BYTES * 3 / 4),
    ("dataplane_memory_used_bytes", {}, BYTES * 3 / 4),
    ("dataplane_memory_budget_bytes", {}, 1 << 20),
    ("dataplane_memory_held_bytes", {}, 0),
    ("dataplane_client_held_bytes", {"client": "others", "kind": "lent"}, 0),
    ("dataplane_max_rows", {}, 4_000_000),
    ("dataplane_serving", {}, 1),
    ("dataplane_build_info", {"version": VERSION}, 1),
    ("dataplane_waiting_puts", {}, 0),
    ("dataplane_calls_waiting_for_room", {}, 0),
    ("dataplane_longest_put_wait_seconds", {}, 0),
    ("dataplane_task_ready_rows", TASK, 1),
    ("dataplane_task_waiting_claims", TASK, 0),
    ("dataplane_task_longest_wait_seconds", TASK, 0),
    ("dataplane_partitions", {}, 1),
    ("dataplane_open_claims", {}, 0),
    ("dataplane_sessions", {}, 1),
    ("dataplane_sessions_opened_total", {}, 1),
    ("dataplane_sessions_ended_total", {"how": "expired"}, 0),
    ("dataplane_open_groups", P, 0),
    *(("dataplane_task_rows", {**TASK, "state": state}, rows) for state, rows in STATES.items()),
    ("dataplane_refusals_total", {"verb": "ReadColumns", "reason": "SAMPLE_NOT_FOUND"}, 1),
]
OF_CALLS: list[tuple[str, dict[str, str], float]] = [
    ("dataplane_calls_total", {"verb": "PutSamples", "code": "OK"}, 1),
    ("dataplane_calls_total", {"verb": "ReadColumns", "code": "OK"}, 1),
    ("dataplane_calls_total", {"verb": "ReadColumns", "code": "NOT_FOUND"}, 1),
    ("dataplane_calls_total", {"verb": "CommitClaim", "code": "OK"}, 1),
    ("dataplane_call_value_bytes_total", {"verb": "PutSamples"}, BYTES),
    ("dataplane_call_value_bytes_total", {"verb": "ReadColumns"}, 2 * 10 * 4),
    ("dataplane_call_value_bytes_total", {"verb": "CommitClaim"}, 3 * 4),
    ("dataplane_call_seconds_count", {"verb": "ReadColumns"}, 2),
]
"""These have the transport as a label, too."""


def test_the_calls_show(after_traffic: ServerThread, transport: TransportChoice) -> None:
    found = samples(after_traffic)
    told = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in found}
    wanted = [*MOVED, *((name, {**labels, "transport": transport}, moved) for name, labels, moved in OF_CALLS)]
    expected = {(name, *sorted(labels.items())): moved for name, labels, moved in wanted}
    assert {key: told.get(key, 0) for key in expected} == expected


WHYS = ("consumed", "cleared", "rolled_back", "retired", "stale", "filtered", "failed")
HOWS = ("committed", "partial", "aborted", "late")


def test_rows_that_are_gone_are_counted_by_why(server: ServerThread, flow: DataPlaneClient) -> None:
    flow.put_samples(IDS, "p", FIELDS)
    flow.clear_samples(["a", "b"], "p")
    flow.reserve_group("p", "prompt", ["e", "f", "g"]).abort()
    with flow.reserve_group("p", "partial", ["j", "k"]) as group:
        group.put(["j"], tags=[{"std": 1}])  # so that the filter below leaves it
        group.put(["j"], {"x": torch.zeros(1, 10)})
        group.fail(["k"], "no answer")
    flow.put_samples(["c", "d"], "p", tags=[{"weight_version": 1}, {"weight_version": 2}])
    flow.set_weight_version("p", 4, retire_below=2)
    flow.set_policies("p", {"train": TaskPolicy(max_staleness=1, when_stale="drop")})
    flow.put_samples(["h", "i"], "p", tags=[{"weight_version": 4, "std": 0}] * 2)
    flow.set_policies("p", {"train": TaskPolicy(where="std > 0", when_excluded="drop")})
    removed = {why: total(server, "dataplane_rows_removed_total", partition="p", reason=why) for why in WHYS}
    gone = {"consumed": 0, "cleared": 2, "rolled_back": 3, "retired": 1, "stale": 1, "filtered": 2, "failed": 1}
    assert removed == gone
    ended = {how: total(server, "dataplane_groups_ended_total", partition="p", how=how) for how in HOWS}
    assert ended == {"committed": 0, "partial": 1, "aborted": 1, "late": 0}


def test_sessions_and_groups_are_counted_while_they_live(
    server: ServerThread, flow: DataPlaneClient, transport: TransportChoice
) -> None:
    groups = [flow.reserve_group("p", "prompt", ["e"])]
    with connect(server.addresses[0], transport=transport) as other:
        groups.append(other.reserve_group("p", "another", ["f"]))
        assert (total(server, "dataplane_sessions"), total(server, "dataplane_open_groups", partition="p")) == (2, 2)
    eventually(lambda: total(server, "dataplane_sessions") == 1)
    groups[0].abort()
    assert total(server, "dataplane_open_groups", partition="p") == 0


def test_the_time_of_a_task_goes_to_the_state_that_it_is_in(server: ServerThread, flow: DataPlaneClient) -> None:
    """A task that holds rows serves, and nothing else goes on."""

    def spent() -> dict[str, float]:
        found = samples(server, "dataplane_task_state_seconds_total")
        assert {sample.labels["task"] for sample in found} == {"train"}
        return {sample.labels["state"]: sample.value for sample in found}

    flow.put_samples(IDS, "p", FIELDS)
    claim = flow.claim("p", "train", ["x"], 4)
    before = spent()
    eventually(lambda: spent()["serving"] > before["serving"])
    after = spent()
    assert set(after) == {"idle", "serving", "waiting", "waiting_for_consumers"}
    assert {state for state, seconds in after.items() if seconds > before[state]} == {"serving"}
    assert claim.state == "open"


def test_clients_that_map_the_memory_are_counted(server: ServerThread, flow: DataPlaneClient) -> None:
    assert total(server, "dataplane_attached_clients") == (1 if flow.transport == "shm" else 0)
    flow.close()
    eventually(lambda: total(server, "dataplane_attached_clients") == 0)


def test_waiting_claims_show_while_they_wait_and_their_wait_is_measured(
    server: ServerThread, flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    claim = threads.submit(flow.claim, "p", "train", ["x"], 4)
    eventually(lambda: total(server, "dataplane_waiting_claims") == 1)
    flow.put_samples(IDS, "p", FIELDS)
    claim.result(200)
    assert total(server, "dataplane_waiting_claims") == 0
    assert total(server, "dataplane_open_claims") == 1
    assert total(server, "dataplane_claim_wait_seconds_sum") > 0
    assert total(server, "dataplane_task_claim_wait_seconds_total", partition="p", task="train") > 0


def test_a_dropped_partition_takes_its_series_with_it(after_traffic: ServerThread, flow: DataPlaneClient) -> None:
    flow.drop_partition("p")
    assert samples(after_traffic, partition="p") == []


def test_names_of_callers_make_no_series_unless_they_are_registered(
    server: ServerThread, flow: DataPlaneClient
) -> None:
    for number in range(5):
        with pytest.raises(NotFoundError):
            flow.put_samples(["a"], f"unknown-{number}")
        with pytest.raises(NotFoundError):
            flow.claim("p", f"unknown-{number}", [], 1)
    labels = [str(sample.labels) for sample in samples(server)]
    assert [text for text in labels if "unknown" in text] == []


def test_ages_grow_and_are_absent_when_there_is_nothing_to_be_old(server: ServerThread, flow: DataPlaneClient) -> None:
    def age(of: str = "dataplane_task_oldest_untaken_age_seconds", **task: str) -> float | None:
        return next((sample.value for sample in samples(server, of, partition="p", **task)), None)

    assert (age(task="train"), age("dataplane_oldest_row_age_seconds")) == (None, None)
    flow.put_samples(IDS, "p", FIELDS)
    eventually(lambda: (age(task="train") or 0.0) > 0.05)
    flow.claim("p", "train", ["x"], 4).commit()
    assert age(task="train") is None
    assert (age("dataplane_oldest_row_age_seconds") or 0.0) > 0.05


def test_the_lag_is_that_of_the_oldest_weights_among_rows_that_a_task_has_not_taken(
    server: ServerThread, flow: DataPlaneClient
) -> None:
    flow.put_samples(["a"], "p", {"x": torch.zeros(1, 10)}, tags=[{"weight_version": 3}])
    flow.put_samples(["b"], "p", {"x": torch.zeros(1, 10)}, tags=[{"weight_version": 7}])
    flow.put_samples(["c"], "p", {"x": torch.zeros(1, 10)}, tags=[{"source": "math"}])
    labels = {"partition": "p", "task": "train"}
    assert total(server, "dataplane_newest_weight_version", partition="p") == 7
    assert total(server, "dataplane_task_weight_version_lag", **labels) == 4
    flow.set_weight_version("p", 8)
    assert total(server, "dataplane_weight_version", partition="p") == 8
    claim = flow.claim("p", "train", ["x"], 1)
    assert total(server, "dataplane_task_weight_version_lag", **labels) == 1
    assert total(server, "dataplane_row_deliveries_versioned_total", **labels) == 1
    assert total(server, "dataplane_row_deliveries_versions_behind_total", **labels) == 5
    group = flow.reserve_group("p", "prompt", ["d"], weight_version=5)
    group.put(["d"], {"x": torch.zeros(1, 10)})
    group.commit(weight_version=9)
    assert total(server, "dataplane_newest_weight_version", partition="p") == 9
    assert total(server, "dataplane_task_weight_version_lag", **labels) == 3
    assert claim.state == "open"


def test_puts_that_wait_for_space_show_while_they_wait_and_their_wait_is_measured(
    server: ServerThread, flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    half = {"x": torch.zeros(1, 150_000)}
    flow.put_samples(["a"], "p", half)
    waiting = threads.submit(flow.put_samples, ["b"], "p", half)
    eventually(lambda: total(server, "dataplane_longest_put_wait_seconds") > 0)
    assert total(server, "dataplane_waiting_puts") == 1
    flow.clear_samples(["a"], "p")
    waiting.result(200)
    assert total(server, "dataplane_longest_put_wait_seconds") == 0
    assert total(server, "dataplane_put_wait_seconds_count") == 1
    assert total(server, "dataplane_put_wait_seconds_sum") > 0


def test_the_event_loop_is_timed_while_nobody_calls(server: ServerThread) -> None:
    before = total(server, "dataplane_event_loop_lag_seconds_count")
    eventually(lambda: total(server, "dataplane_event_loop_lag_seconds_count") > before)


def test_names_with_any_character_are_told_as_they_are(server: ServerThread, flow: DataPlaneClient) -> None:
    name = 'a "quoted" \\ % name\nof {two} lines'
    flow.register_partition(name, ["x"], 0, [name])
    assert total(server, "dataplane_rows", partition=name) == 0
    assert total(server, "dataplane_task_rows", partition=name, task=name, state="dead") == 0


_KINDS = {"counter", "gauge", "histogram"}
_OTHER_UNITS = re.compile(
    r"(milli|micro|nano)seconds|_(ms|us|ns|minutes|hours|kb|mb|gb|kib|mib|gib|kilobytes|percent)\b"
)


@pytest.fixture
def ours(after_traffic: ServerThread) -> dict[str, Metric]:
    return {name: family for name, family in families(after_traffic).items() if name.startswith("dataplane_")}


def test_what_is_exported_is_what_the_catalog_says(ours: dict[str, Metric], flow: DataPlaneClient) -> None:
    told = {spec.name.removesuffix("_total"): (spec.kind, spec.text) for spec in CATALOG}
    assert {name: (family.type, family.documentation) for name, family in ours.items()} == told
    labels = {spec.name: {*spec.labels, "le"} if spec.kind == "histogram" else {*spec.labels} for spec in CATALOG}
    for family in ours.values():
        for sample in family.samples:
            name = sample.name if sample.name in labels else sample.name.rpartition("_")[0]
            assert sample.labels.keys() - labels[name] == set(), sample.name


def test_metrics_have_help_and_a_type_and_names_by_the_conventions(ours: dict[str, Metric]) -> None:
    assert {name: family.type for name, family in ours.items() if family.type not in _KINDS} == {}
    assert [name for name, family in ours.items() if not family.documentation.endswith(".")] == []
    assert [name for name in ours if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)] == []
    assert [name for name in ours if _OTHER_UNITS.search(name)] == []
    assert [name for name in ours if re.search(r"_(counter|gauge|histogram|summary)", name)] == []
    for name, family in ours.items():
        totals = {sample.name for sample in family.samples if sample.name.endswith("_total")}
        assert totals == ({f"{name}_total"} if family.type == "counter" else set()), name
    labels = {label for family in ours.values() for sample in family.samples for label in sample.labels}
    assert [label for label in labels if not re.fullmatch(r"[a-z]+", label)] == []


def test_histograms_measure_seconds_in_rising_buckets(ours: dict[str, Metric]) -> None:
    histograms = [family for family in ours.values() if family.type == "histogram"]
    assert {family.name for family in histograms} == {spec.name for spec in CATALOG if spec.kind == "histogram"}
    for family in histograms:
        bounds = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
        width = bounds.index(float("inf")) + 1
        assert bounds[:width] == sorted(set(bounds[:width]))
