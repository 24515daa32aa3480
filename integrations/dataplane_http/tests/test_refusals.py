"""What the gateway refuses: with which status, reason and facts, and that nothing has changed then."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from dataplane_client import errors
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError
from dataplane_http.errors import STATUS_TABLE
from dataplane_http.tests.asking import Answer, Ask, ask_at, new_id
from dataplane_http.tests.conftest import running_gateway
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

SAMPLES = "/v1/partitions/p/samples"


def one(**sample: Any) -> dict[str, object]:
    return {"samples": [{"sample_id": "a", **sample}]}


def two(field: str, first: object, second: object) -> dict[str, object]:
    return {"samples": [{"sample_id": name, "fields": {field: value}} for name, value in (("a", first), ("b", second))]}


def deep(levels: int) -> object:
    return [] if levels == 0 else [deep(levels - 1), 1]


BODIES: dict[str, tuple[object, str, tuple[str, ...]]] = {
    "a list": ([], "INVALID_REQUEST", ()),
    "no samples": ({}, "INVALID_REQUEST", ("samples",)),
    "none of them": ({"samples": []}, "INVALID_REQUEST", ("1 to 65536",)),
    "an unknown key": ({"sample": []}, "INVALID_REQUEST", ("sample",)),
    "an unknown key of a sample": (one(field={}), "INVALID_REQUEST", ("field", "'a'")),
    "a sample that is a string": ({"samples": ["a"]}, "INVALID_REQUEST", ("samples.0",)),
    "no sample_id": ({"samples": [{}]}, "INVALID_REQUEST", ("samples.0.sample_id",)),
    "an empty sample_id": ({"samples": [{"sample_id": ""}]}, "INVALID_REQUEST", ("1 to 256 bytes",)),
    "half a letter": ({"samples": [{"sample_id": "\ud83d"}]}, "INVALID_REQUEST", ("sample id", "UTF-8")),
    "half a letter in a field": (one(fields={"answer": "\ud83d"}), "INVALID_REQUEST", ("'answer'", "'a'")),
    "half a letter as a field": (one(fields={"\ud83d": 1}), "INVALID_REQUEST", ("field name", "UTF-8")),
    "half a letter in a tag": (one(tags={"x": "\ud83d"}), "INVALID_REQUEST", ("'a'",)),
    "half a letter in names of what is refused": (
        {"samples": [{"sample_id": "\ud83d", "fields": {"\ud83d": [[1]]}}]},
        "FIELD_MISMATCH",
        ("flatten",),
    ),
    "half a letter in the name of a sample with an unknown key": (
        {"samples": [{"sample_id": "\ud83d", "x": 1}]},
        "INVALID_REQUEST",
        ("samples.0.x",),
    ),
    "fields that are a list": (one(fields=[]), "INVALID_REQUEST", ("fields", "'a'")),
    "a length that is no integer": (one(sequence_length=1.5), "INVALID_REQUEST", ("sequence_length", "'a'")),
    "a negative length": (one(sequence_length=-1), "INVALID_REQUEST", ("sequence_length", "'a'", "0")),
    "a length of one sample only": (
        {"samples": [{"sample_id": "a", "sequence_length": 1}, {"sample_id": "b"}]},
        "INVALID_REQUEST",
        ("sequence_length", "'b'"),
    ),
    "a version that is true": ({**one(), "weight_version": True}, "INVALID_REQUEST", ("weight_version",)),
    "a flag that is a number": ({**one(), "create_only": 1}, "INVALID_REQUEST", ("create_only",)),
    "a version that is a string": (one(tags={"weight_version": "7"}), "INVALID_REQUEST", ("int from 0 to",)),
    "a request_id that is a number": ({**one(), "request_id": 1}, "INVALID_REQUEST", ("request_id",)),
    "a long request_id": ({**one(), "request_id": "r" * 65}, "INVALID_REQUEST", ("1 to 64 bytes",)),
    "an empty request_id": ({**one(), "request_id": ""}, "INVALID_REQUEST", ("1 to 64 bytes",)),
    "an empty group_id": ({**one(), "group_id": ""}, "INVALID_REQUEST", ("group id", "1 to 256 bytes")),
    "a sample twice": ({"samples": [{"sample_id": "a"}] * 2}, "DUPLICATE", ("'a'",)),
    "an unknown field": (one(fields={"nope": 1}), "FIELD_NOT_DECLARED", ("'nope'",)),
    "a missing field": (
        {"samples": [{"sample_id": "a", "fields": {"reward": 1}}, {"sample_id": "b"}]},
        "ROW_COUNT_MISMATCH",
        ("'reward'", "'a'", "'b'"),
    ),
    "a number beside null": (two("reward", 1, None), "FIELD_MISMATCH", ("'reward'", "'a'", "'b'")),
    "a list beside a number": (two("reward", 1, [1]), "FIELD_MISMATCH", ("'reward'", "'b'", "a list of numbers")),
    "lists of lists": (two("reward", [[1]], [[2]]), "FIELD_MISMATCH", ("'reward'", "'a'", "flatten")),
    "true beside a number": (two("reward", 1, True), "FIELD_MISMATCH", ("'reward'", "bool", "float32")),
    "only empty lists": (two("input_ids", [], []), "FIELD_MISMATCH", ("'input_ids'", "dtypes")),
    "an integer that is too large": (one(fields={"input_ids": [1 << 63]}), "FIELD_MISMATCH", ("'input_ids'", "int64")),
    "an integer that is too large for a small type": (
        {**one(fields={"input_ids": [300]}), "dtypes": {"input_ids": "uint8"}},
        "FIELD_MISMATCH",
        ("'input_ids'", "uint8"),
    ),
    "a float that is too large": (one(fields={"reward": 1e39}), "FIELD_MISMATCH", ("'reward'", "float32")),
    "a float for an integer": (
        {**one(fields={"input_ids": [1.5]}), "dtypes": {"input_ids": "int64"}},
        "FIELD_MISMATCH",
        ("'input_ids'", "float", "int64"),
    ),
    "an element type that JSON has not": (
        {**one(fields={"reward": 1}), "dtypes": {"reward": "bfloat16"}},
        "FIELD_MISMATCH",
        ("'reward'", "'bfloat16'", "bool, uint8"),
    ),
    "a type of no field": ({**one(), "dtypes": {"reward": "int64"}}, "INVALID_REQUEST", ("'reward'",)),
    "another type than the field's": (
        {**one(fields={"done": 1}), "dtypes": {"done": "int64"}},
        "FIELD_MISMATCH",
        ("'done'",),
    ),
    "per-token fields of other lengths": (
        one(fields={"input_ids": [1, 2], "logprobs": [0.5]}),
        "LENGTH_MISMATCH",
        ("'a'",),
    ),
    "a tag that is a list": (one(tags={"x": []}), "INVALID_REQUEST", ("'a'", "'x'")),
    "a tag that is too large": (one(tags={"x": 1 << 70}), "INVALID_REQUEST", ("'a'", "'x'")),
    "an object that is too deep": (one(fields={"answer": deep(129)}), "INVALID_REQUEST", ("'answer'", "'a'", "128")),
    "more samples than a call may name": ({"samples": ["a"] * 65_537}, "INVALID_REQUEST", ("samples", "65536")),
    "more fields than there may be": (
        one(fields=dict.fromkeys(map(str, range(65)), "\ud83d")),
        "INVALID_REQUEST",
        ("fields", "'a'", "64"),
    ),
    "more tags than there may be": (
        one(tags=dict.fromkeys(map(str, range(65)), 1 << 70)),
        "INVALID_REQUEST",
        ("tags", "'a'", "64"),
    ),
    "more dtypes than fields": (
        {**one(), "dtypes": dict.fromkeys(map(str, range(65)), "")},
        "INVALID_REQUEST",
        ("dtypes", "64"),
    ),
    "an object of many lists": (one(fields={"answer": [[], *[{}] * 600]}), "INVALID_REQUEST", ("'answer'", "'a'")),
}
RAW: dict[str, bytes] = {
    "nothing": b"",
    "cut off": b'{"samples": [',
    "no UTF-8": b'{"samples": "\xff"}',
    "UTF-16": '{"samples": []}'.encode("utf-16"),
    "NaN": b'{"samples": [{"sample_id": "a", "fields": {"reward": NaN}}]}',
    "infinity": b'{"samples": [{"sample_id": "a", "tags": {"x": -Infinity}}]}',
    "a number beyond float64": b'{"samples": [{"sample_id": "a", "tags": {"x": 1e999}}]}',
    "a number of many digits": b'{"weight_version": %s}' % (b"1" * 5000),
    "more lists than there may be": b'{"x": [%s 1]}' % (b"[]," * (1 << 19)),
    "more names than there may be": b'{"x": {%s "": 1}}' % (b'"":1,' * (1 << 19)),
    "a key twice": b'{"samples": [{"sample_id": "a", "fields": {"reward": 1, "reward": 2}}]}',
    "nested without end": b"[" * 100_000,
}


def refused(answer: Answer, error: tuple[int, str], *facts: str) -> None:
    assert answer.error == error, answer.body
    assert [fact for fact in facts if fact not in answer.body["error"]["message"]] == [], answer.body


@pytest.fixture
def untouched(client: DataPlaneClient, partition: str) -> Any:
    client.put_samples(["d"], "p", {"done": [True], "reward": [0.5]})
    before = client.partition("p")
    yield
    assert client.partition("p") == before
    assert client.server_status().memory_used_bytes == before.size_bytes


@pytest.mark.parametrize(("body", "reason", "facts"), BODIES.values(), ids=BODIES)
def test_a_body_that_is_wrong_is_refused_by_sample_field_and_rule(
    ask: Ask, untouched: None, body: object, reason: str, facts: tuple[str, ...]
) -> None:
    refused(ask("POST", SAMPLES, body), (400, reason), *facts)


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
def test_what_is_no_json_is_refused(ask: Ask, untouched: None, raw: bytes) -> None:
    refused(ask("POST", SAMPLES, raw=raw), (400, "INVALID_REQUEST"))


@pytest.mark.parametrize(
    ("method", "path", "headers", "raw", "status"),
    [
        ("POST", SAMPLES, {"Content-Type": "text/plain"}, b"{}", 415),
        ("POST", SAMPLES, {"Content-Type": ""}, b"{}", 415),
        ("POST", SAMPLES, {"Content-Encoding": "gzip"}, b"{}", 415),
        ("POST", SAMPLES, {}, b" " * (4 << 20) + b"{}", 413),
        ("POST", SAMPLES, {"Transfer-Encoding": "chunked"}, b"400001\r\n" + b" " * 0x400001 + b"\r\n0\r\n\r\n", 413),
        ("PUT", SAMPLES, {}, b"{}", 405),
        ("GET", "/v1/none", {}, None, 404),
        ("GET", "/v1/partitions/", {}, None, 404),
        ("GET", "/metrics", {}, None, 404),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,
)
def test_what_is_no_call_has_the_status_of_http(
    ask: Ask, untouched: None, method: str, path: str, headers: dict[str, str], raw: bytes | None, status: int
) -> None:
    answer = ask(method, path, raw=raw, headers=headers)
    assert answer.error == (status, "INVALID_REQUEST")
    assert answer.headers.get("Allow") == ("POST" if status == 405 else None)
    assert (f"{method} {path}; GET /openapi.json" in answer.body["error"]["message"]) == (status in (404, 405))


def test_an_error_names_what_it_is_about(ask: Ask, partition: str) -> None:
    error = ask("POST", SAMPLES, two("reward", 1, None)).body["error"]
    assert {key: error[key] for key in ("field", "sample_id", "reason")} == {
        "field": "reward",
        "sample_id": "b",
        "reason": "FIELD_MISMATCH",
    }
    missing = ask("GET", "/v1/partitions/nope")
    assert (missing.error, missing.body["error"]["partition_id"]) == ((404, "PARTITION_NOT_FOUND"), "nope")
    assert ask("POST", "/v1/partitions/nope/samples", one()).error == (404, "PARTITION_NOT_FOUND")


def test_a_request_id_of_another_kind_of_call_is_refused(ask: Ask, partition: str) -> None:
    name = new_id()
    ask("POST", SAMPLES, {**one(fields={"reward": 1}), "request_id": name})
    answer = ask("POST", SAMPLES, {**one(fields={"reward": 1}), "request_id": name, "group_id": "g"})
    refused(answer, (409, "REQUEST_ID_USED"), name)


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "another sample": (SAMPLES, {"samples": [{"sample_id": "b", "fields": {"reward": 1}}]}),
    "another value": (SAMPLES, {"samples": [{"sample_id": "a", "fields": {"reward": 2}}]}),
    "another tag": (SAMPLES, {"samples": [{"sample_id": "a", "fields": {"reward": 1}, "tags": {"x": 1}}]}),
    "another version": (SAMPLES, {"samples": [{"sample_id": "a", "fields": {"reward": 1}}], "weight_version": 8}),
    "another partition": ("/v1/partitions/q/samples", {}),
}


@pytest.mark.parametrize("group", [{}, {"group_id": "g"}], ids=["alone", "as a group"])
@pytest.mark.parametrize(("path", "change"), OTHERS.values(), ids=OTHERS)
def test_another_request_under_a_request_id_that_was_answered_is_refused_and_stores_nothing(
    client: DataPlaneClient, ask: Ask, partition: str, group: dict[str, str], path: str, change: dict[str, Any]
) -> None:
    client.register_partition("q", ["reward"], 0, ["train"])
    name = new_id()
    body = {**one(fields={"reward": 1}), "request_id": name, "weight_version": 7, **group}
    first = ask("POST", SAMPLES, body)
    assert first.status == 200
    refused(ask("POST", path, {**body, **change}), (409, "REQUEST_ID_USED"), name)
    assert (client.partition("p").rows, client.partition("q").rows) == (1, 0)
    assert client.get_samples(["a"], "p", ["reward"])["reward"].tolist() == [1.0]
    client.clear_samples(None, "p")
    turned = {key: body[key] for key in reversed(body)}
    assert ask("POST", SAMPLES, turned).body == first.body
    assert client.partition("p").rows == 0


def test_a_put_that_only_creates_is_refused_for_a_sample_that_exists(
    client: DataPlaneClient, ask: Ask, partition: str
) -> None:
    body = {"samples": [{"sample_id": name, "fields": {"reward": 1}} for name in "ab"], "create_only": True}
    ask("POST", SAMPLES, one(fields={"reward": 0}))
    refused(ask("POST", SAMPLES, body), (409, "SAMPLE_EXISTS"), "'a'")
    assert client.partition("p").rows == 1
    client.clear_samples(None, "p")
    assert ask("POST", SAMPLES, body).body["created_rows"] == 2


def test_what_is_larger_than_the_memory_is_refused_and_a_closed_partition_takes_nothing(
    client: DataPlaneClient, ask: Ask, partition: str
) -> None:
    assert ask("POST", SAMPLES, one(fields={"answer": "x" * (2 << 20)})).error == (400, "PUT_TOO_LARGE")
    client.close_partition("p")
    assert ask("POST", SAMPLES, one(fields={"reward": 1})).error == (409, "PARTITION_CLOSED")


def test_a_put_that_waits_when_the_gateway_stops_is_told_to_come_again(
    server: ServerThread, client: DataPlaneClient, partition: str
) -> None:
    client.put_samples(["big"], "p", {"answer": [b"x" * 1_000_000]})
    answers = list[Answer]()
    with running_gateway(server.addresses[0]) as address:
        body = one(fields={"answer": "y" * 100_000})
        waiting = threading.Thread(target=lambda: answers.append(ask_at(address)("POST", SAMPLES, body)))
        waiting.start()
        eventually(lambda: client.server_status().waiting_puts == 1)
    waiting.join(200)
    assert (answers[0].error, answers[0].headers["Retry-After"]) == ((503, "DRAINING"), "1")
    with pytest.raises(OSError, match="refused"):
        ask_at(address)("GET", "/v1/partitions/p")


def test_a_request_that_was_answered_is_known_to_the_next_lives_of_gateway_and_server(tmp_path: Path) -> None:
    config = ServerConfig(
        listen=(f"unix://{tmp_path}/s",),
        limits=Limits(memory_bytes=1 << 20),
        durability="disk",
        data_dir=tmp_path / "data",
    )
    answers = []
    for life in range(2):
        server = ServerThread(config)
        try:
            with connect(server.addresses[0]) as client, running_gateway(server.addresses[0]) as address:
                if life == 0:
                    client.register_partition("p", ["reward"], 0, ["train"])
                body = {**one(fields={"reward": 1}), "group_id": "g", "request_id": "r"}
                answers.append(ask_at(address)("POST", SAMPLES, body))
                assert (client.partition("p").rows, client.partition("p").open_groups) == (1, 0)
        finally:
            server.stop()
    assert answers[0].status == 200
    assert answers[0].body == answers[1].body


def test_every_error_of_the_client_has_a_status() -> None:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DataPlaneError)]
    assert [kind for kind in found if not STATUS_TABLE.keys() & {*kind.__mro__}] == [DataPlaneError]
