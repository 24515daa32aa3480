"""Puts as JSON are the puts of the Python client, and are put once."""

from __future__ import annotations

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.tensors import objects
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient
from dataplane_http.tests.asking import Ask, new_id

SAMPLES = "/v1/partitions/p/samples"
COLUMNS: dict[str, list[Any]] = {
    "input_ids": [[5, 6, 7], [], [8]],
    "logprobs": [[-0.5, -1, -0.25], [], [-2.0]],
    "reward": [0.5, 1, -1.5],
    "done": [True, False, True],
    "answer": [{"text": "12", "tries": [1, None]}, "é", None],
}
IDS = ["a", "b", "c"]
TAGS: list[dict[str, Any]] = [{"version": 1, "std": 0.5, "kind": "math", "ok": True, "none": None}, {}, {"version": 2}]


def samples(columns: dict[str, list[Any]], prefix: str = "") -> list[dict[str, Any]]:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [
        {"sample_id": prefix + name, "fields": row, "tags": tags, "sequence_length": len(row["input_ids"])}
        for name, row, tags in zip(IDS, rows, TAGS, strict=True)
    ]


def test_a_put_as_json_is_the_put_of_the_python_client(client: DataPlaneClient, partition: str, ask: Ask) -> None:
    answer = ask("POST", SAMPLES, {"samples": samples(COLUMNS)})
    assert (answer.status, answer.body["created_rows"]) == (200, 3)
    client.register_partition("q", list(COLUMNS), 0, ["train"], per_token_fields=["input_ids", "logprobs"])
    client.put_samples(IDS, "q", {**COLUMNS, "answer": objects(*COLUMNS["answer"])}, TAGS, sequence_lengths=[3, 0, 1])

    def described(name: str) -> object:
        return [(field.name, field.kind, field.dtype, field.row_shape) for field in client.partition(name).fields]

    def claimed(name: str) -> list[object]:
        with client.claim(name, "train", list(COLUMNS), 3) as claim:
            batch = client.read_columns(claim.meta, list(COLUMNS))
            columns = [batch[field].tolist() for field in COLUMNS]
            return [claim.meta.sample_ids, claim.meta.sequence_lengths, claim.meta.tags, columns]

    assert described("p") == described("q")
    assert claimed("p") == claimed("q")


def test_the_types_of_fields_are_those_that_the_body_names_or_that_they_have(
    client: DataPlaneClient, partition: str, ask: Ask
) -> None:
    ones = [{"sample_id": "a", "fields": {"reward": 1, "input_ids": []}}]
    assert ask("POST", SAMPLES, {"samples": ones, "dtypes": {"reward": "float64", "input_ids": "int32"}}).status == 200
    twos = [{"sample_id": "b", "fields": {"reward": 2, "input_ids": [7]}}]
    assert ask("POST", SAMPLES, {"samples": twos}).status == 200
    kinds = {field.name: field.dtype for field in client.partition("p").fields}
    assert (kinds["reward"], kinds["input_ids"]) == ("float64", "int32")
    rows = client.get_samples(["a", "b"], "p", ["reward", "input_ids"], layout="auto")
    assert rows["reward"].tolist() == [1.0, 2.0]
    assert [row.tolist() for row in rows["input_ids"].unbind()] == [[], [7]]


def test_an_integer_that_a_float_does_not_hold_is_refused(client: DataPlaneClient, partition: str, ask: Ask) -> None:
    for reward, status in [(0.1, 200), (1 << 24, 200), ((1 << 24) + 1, 400)]:
        answer = ask("POST", SAMPLES, {"samples": [{"sample_id": "a", "fields": {"reward": reward}}]})
        assert answer.status == status
    assert answer.error == (400, "FIELD_MISMATCH")
    assert client.get_samples(["a"], "p", ["reward"])["reward"].tolist() == [1 << 24]


def test_a_field_of_objects_takes_any_value(client: DataPlaneClient, partition: str, ask: Ask) -> None:
    for name, value in [("a", {"x": 1}), ("b", 5), ("c", [1, 2]), ("d", [])]:
        assert ask("POST", SAMPLES, {"samples": [{"sample_id": name, "fields": {"answer": value}}]}).status == 200
    rows = client.get_samples(["a", "b", "c", "d"], "p", ["answer"])
    assert [rows[row]["answer"] for row in range(4)] == [{"x": 1}, 5, [1, 2], []]


def test_fields_that_come_later_are_added_to_rows_that_exist(client: DataPlaneClient, partition: str, ask: Ask) -> None:
    ask("POST", SAMPLES, {"samples": [{"sample_id": "a", "fields": {"reward": 0.5}}]})
    later = ask("POST", SAMPLES, {"samples": [{"sample_id": "a", "tags": {"judge": 2}}], "weight_version": 3})
    assert (later.status, later.body["created_rows"], later.body["replaced_rows"]) == (200, 0, 1)
    with client.claim("p", "train", ["reward"], 1) as claim:
        assert claim.meta.tags == [{"judge": 2, "weight_version": 3}]
    again = ask("POST", SAMPLES, {"samples": [{"sample_id": "a", "fields": {"reward": 1}}]})
    assert (again.body["replaced_rows"], again.body["consumed_rows"]) == (1, 1)


def test_a_repeated_request_gets_the_same_answer_and_changes_nothing(
    client: DataPlaneClient, partition: str, ask: Ask
) -> None:
    body = {"samples": samples(COLUMNS), "request_id": new_id()}
    first = ask("POST", SAMPLES, body)
    client.put_samples(["a"], "p", {"reward": [9.0]})
    assert ask("POST", SAMPLES, body).body == first.body
    assert first.body == {"request_id": body["request_id"], "created_rows": 3, "replaced_rows": 0, "consumed_rows": 0}
    assert client.get_samples(["a"], "p", ["reward"])["reward"].tolist() == [9.0]


def test_a_partition_has_any_name_that_a_path_can_hold(client: DataPlaneClient, ask: Ask) -> None:
    client.register_partition("run 1/é", ["reward"], 0, ["train"])
    path = "/v1/partitions/run%201%2F%C3%A9"
    assert ask("POST", f"{path}/samples", {"samples": [{"sample_id": "a", "fields": {"reward": 1}}]}).status == 200
    described = ask("GET", path)
    assert (described.status, described.body["partition_id"], described.body["rows"]) == (200, "run 1/é", 1)


def test_the_history_of_a_sample_names_http(client: DataPlaneClient, partition: str, ask: Ask) -> None:
    ask("POST", SAMPLES, {"samples": samples(COLUMNS, "of-http-")})
    assert {event.who for event in client.sample("p", "of-http-a").events if event.what == "put"} == {"http"}


def test_a_group_becomes_visible_whole_with_its_version(client: DataPlaneClient, partition: str, ask: Ask) -> None:
    body = {"samples": samples(COLUMNS), "group_id": "g", "weight_version": 7}
    assert ask("POST", SAMPLES, body).body["created_rows"] == 3
    with client.claim("p", "train", ["reward"], 1, whole_groups=True) as claim:
        group = claim.groups[0]
        assert (group.group_id, group.rows, group.start_weight_version) == ("g", 3, 7)
        assert (claim.meta.sample_ids, [tags["weight_version"] for tags in claim.tags]) == (IDS, [7, 7, 7])


def test_a_group_that_is_repeated_is_there_once(client: DataPlaneClient, partition: str, ask: Ask) -> None:
    body = {"samples": samples(COLUMNS), "group_id": "g", "request_id": new_id()}
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: ask("POST", SAMPLES, body), range(4)))
    assert {(answer.status, answer.body["created_rows"]) for answer in answers} == {(200, 3)}
    assert ask("POST", SAMPLES, {**body, "request_id": new_id()}).error == (409, "SAMPLE_EXISTS")
    assert client.partition("p").rows == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"fields": {"reward": 0.5, "nope": 1}}, (400, "FIELD_NOT_DECLARED")),
        ({"fields": {}}, (409, "GROUP_INCOMPLETE")),
        ({"fields": {"input_ids": [1], "logprobs": [0.5, 0.5]}}, (400, "LENGTH_MISMATCH")),
    ],
)
def test_a_group_that_is_refused_leaves_nothing_and_can_be_put_again(
    client: DataPlaneClient, partition: str, ask: Ask, change: dict[str, object], error: tuple[int, str]
) -> None:
    body = {"group_id": "g", "request_id": new_id()}
    assert ask("POST", SAMPLES, {**body, "samples": [{"sample_id": "a", **change}]}).error == error
    described = client.partition("p")
    assert (described.rows, described.open_groups) == (0, 0)
    assert ask("POST", SAMPLES, {**body, "samples": samples(COLUMNS)}).body["created_rows"] == 3


def test_a_group_whose_caller_hangs_up_while_it_waits_leaves_nothing(
    client: DataPlaneClient, partition: str, gateway: str
) -> None:
    client.put_samples(["big"], "p", {"answer": [b"x" * 1_000_000]})
    body = json.dumps({"samples": [{"sample_id": "a", "fields": {"answer": "y" * 100_000}}], "group_id": "g"})
    connection = http.client.HTTPConnection(gateway)
    connection.request("POST", SAMPLES, body, {"Content-Type": "application/json"})
    eventually(lambda: client.server_status().waiting_puts == 1)
    assert client.partition("p").open_groups == 1
    connection.close()
    eventually(lambda: client.partition("p").open_groups == 0)
    status = client.server_status()
    assert (status.waiting_puts, client.partition("p").rows) == (0, 1)


def test_a_put_that_waits_for_space_is_put_when_there_is_some(
    client: DataPlaneClient, partition: str, ask: Ask
) -> None:
    client.put_samples(["big"], "p", {"answer": [b"x" * 1_000_000]})
    answers = []
    body = {"samples": [{"sample_id": "a", "fields": {"answer": "y" * 100_000}}]}
    thread = threading.Thread(target=lambda: answers.append(ask("POST", SAMPLES, body)))
    thread.start()
    eventually(lambda: client.server_status().waiting_puts == 1)
    client.clear_samples(["big"], "p")
    thread.join(200)
    assert [answer.status for answer in answers] == [200]
