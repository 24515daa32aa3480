"""The routes of the page on a real server: what they tell, to whom, and within which bounds."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from tests.integration.access.conftest import Start, hashed

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.options import Credentials
from dataplane_server.core.state.partition import REASONS
from dataplane_server.core.tasks.task_states import TASK_STATES
from dataplane_server.observe.metrics import Transport
from dataplane_server.page.page import MAX_VIEWERS
from dataplane_server.testing import ServerThread

ASSETS = ("app.js", "dom.js", "inspector.js", "model.js", "views.js", "style.css", "icon.svg", "index.html")
TOKENS = {"prometheus": {"reader": [""]}, "trainer": {"consumer": ["train"]}, "rollout": {"producer": ["train"]}}
"""Callers, whose names are their tokens, with their roles."""
ROOT = "root"


class Asked:
    """An answer, read to its end unless it is a stream."""

    def __init__(self, server: ServerThread, path: str, token: str = "", host: str = "127.0.0.1", **query: str) -> None:
        self.connection = http.client.HTTPConnection(str(server.http_address), timeout=200)
        headers = {"Host": host} | ({"Authorization": f"Bearer {token}"} if token else {})
        self.connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=headers)
        self.answer = self.connection.getresponse()
        self.status, self.headers = self.answer.status, self.answer.headers

    def text(self) -> str:
        with contextlib.closing(self.connection):
            return self.answer.read().decode()

    def json(self) -> Any:
        return json.loads(self.text())

    def part(self, name: str) -> Any:
        """What the stream says of a part first."""
        while line := self.answer.readline():
            if line.startswith(b"data:") and (told := json.loads(line[5:]))["part"] == name:
                return told["says"]
        raise AssertionError(f"the stream ended without {name}")


@pytest.fixture
def server(start: Start) -> ServerThread:
    return start(http="127.0.0.1:0")


@pytest.fixture
def guarded(start: Start, tmp_path: Path) -> ServerThread:
    """A server with an access file."""
    callers = [
        {"name": name, "tokens": [hashed(name)], "roles": roles}
        for name, roles in {**TOKENS, ROOT: {"admin": [""]}}.items()
    ]
    file = tmp_path / "access.json"
    file.write_text(json.dumps({"callers": callers}))
    return start(http="127.0.0.1:0", access=file)


def fill(client: DataPlaneClient) -> None:
    """Partition train with rows a and b, of which a task has given up b."""
    per_token = ["input_ids", "loss_mask", "logprobs"]
    client.register_partition(
        "train", [*per_token, "reward", "text", "image"], 0, ["policy"], per_token_fields=per_token, max_deliveries=1
    )
    texts = np.empty(2, object)
    texts[:] = ["one & <b>two</b>", {"n": 1}]
    columns = {
        "input_ids": [torch.tensor([5, 6, 7]), torch.tensor([8])],
        "loss_mask": [torch.tensor([False, True, True]), torch.tensor([True])],
        "logprobs": [
            torch.tensor([-0.5, float("nan"), -2.0], dtype=torch.bfloat16),
            torch.tensor([-1.0], dtype=torch.bfloat16),
        ],
        "reward": torch.tensor([1.0, 0.25]),
        "text": texts,
        "image": torch.zeros(2, 64, 64),
    }
    client.put_samples(["a", "b"], "train", columns, [{"domain": "math"}, {"domain": "code"}])
    client.claim("train", "policy", ["reward"], 1, where="domain == 'code'").release(reason="too long")


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_page_and_its_files_come_from_the_server_alone(server: ServerThread) -> None:
    home = Asked(server, "/")
    assert home.headers["Content-Type"] == "text/html; charset=utf-8"
    needed = set(re.findall(r'(?:href|src)="([^"#]+)"', home.text()))
    assert needed
    assert needed <= {f"page/{name}" for name in ASSETS}
    for name in ASSETS:
        file = Asked(server, f"/page/{name}")
        text = file.text()
        assert (file.status, file.headers["Content-Security-Policy"].split(";")[0]) == (200, "default-src 'self'")
        assert file.headers["X-Content-Type-Options"] == "nosniff"
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
        assert "innerHTML" not in text
    assert Asked(server, "/page/..%2Fpage.py").status == 404
    assert Asked(server, "/page/page.py").status == 404


@pytest.mark.parametrize(
    ("table", "told"), [("NOW", TASK_STATES), ("REMOVED", REASONS), ("TRANSPORT", get_args(Transport))]
)
def test_the_page_has_words_for_all_that_the_server_tells(table: str, told: tuple[str, ...]) -> None:
    views = files("dataplane_server.page").joinpath("assets/views.js").read_text()
    (words,) = re.findall(rf"^const {table} = {{(.*)}};$", views, re.MULTILINE)
    assert set(re.findall(r" (\w+):", words)) == set(told)


# -- the stream --------------------------------------------------------------------------------------------------------


def test_the_stream_tells_what_the_server_has(server: ServerThread) -> None:
    with connect(server.addresses[0], client_name="tester") as client:
        fill(client)
        stream = Asked(server, "/page/events")
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.part("server")["rows"] == 2
        told = stream.part("partition train")
        assert (told["rows"], told["tasks"][0]["dead"], told["size_bytes"]) == (
            2,
            1,
            client.partition("train").size_bytes,
        )
        client.clear_samples(["a"], "train")
        assert stream.part("partition train")["rows"] == 1
        stream.connection.close()


def test_viewers_are_few_at_a_time(server: ServerThread) -> None:
    streams = [Asked(server, "/page/events") for _ in range(MAX_VIEWERS)]
    for stream in streams:
        stream.part("server")
    refused = Asked(server, "/page/events")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    assert refused.text() == f"{MAX_VIEWERS} pages are open, which is the limit; close one\n"
    assert Asked(server, "/healthz").status == 200
    for stream in streams:
        stream.connection.close()


# -- rows --------------------------------------------------------------------------------------------------------------


def test_the_inspector_tells_the_story_of_a_row_and_its_values(server: ServerThread) -> None:
    with connect(server.addresses[0], client_name="tester") as client:
        fill(client)
        told = Asked(server, "/page/sample", id="a").json()
        assert (told["partition"], told["row"]["tokens"], told["row"]["tags"]) == ("train", 3, {"domain": "math"})
        assert [(event["what"], event["who"]) for event in told["events"]] == [("put", "tester")]
        values = {one["field"]: (one["kind"], one["value"]) for one in told["values"]}
        assert values == {
            "input_ids": ("tokens", [5, 6, 7]),
            "loss_mask": ("tokens", [0, 1, 1]),
            "logprobs": ("tokens", [-0.5, "nan", -2.0]),
            "reward": ("numbers", [1.0]),
            "text": ("object", "one & <b>two</b>"),
        }
        listed = Asked(server, "/page/samples", partition="train", task="policy", state="dead").json()
        assert [(row["id"], row["states"]) for row in listed["rows"]] == [("b", [["policy", "dead"]])]
        dead = Asked(server, "/page/dead", partition="train", task="policy").json()
        assert dead["rows"] == [{"id": "b", "deliveries": 1, "reason": "too long"}]
        client.clear_samples(["b"], "train")
        gone = Asked(server, "/page/sample", id="b", partition="train").json()
        assert "row" not in gone
        assert [event["what"] for event in gone["events"]] == ["put", "claimed", "released", "dead_letter", "cleared"]


def test_rows_are_listed_with_states_numbers_text_and_their_group(server: ServerThread) -> None:
    with connect(server.addresses[0], client_name="agent") as client:
        fill(client)
        group = client.reserve_group("train", "g1", ["c", "d"], weight_version=3)
        group.put(["c"], {"reward": torch.tensor([0.5])})
        rows = {row["id"]: row for row in Asked(server, "/page/samples", partition="train").json()["rows"]}
        assert (rows["a"]["values"], rows["a"]["states"]) == (
            {"reward": 1.0, "text": "one & <b>two</b>"},
            [["policy", "untaken"]],
        )
        assert (rows["b"]["states"], rows["b"]["group"]) == ([["policy", "dead"]], "")
        told = Asked(server, "/page/samples", partition="train", group="g1").json()
        assert told["group"] == {
            "id": "g1", "rows": 2, "reserved": True, "client": "agent", "versions": [3, None], "failed": 0,
        }  # fmt: skip
        assert [(row["id"], row["hidden"], row["values"]) for row in told["rows"]] == [
            ("c", True, {"reward": 0.5}),
            ("d", True, {}),
        ]
        group.put(["d"], {"reward": torch.tensor([0.25])})
        group.commit()
        told = Asked(server, "/page/samples", partition="train", group="g1").json()
        gone = Asked(server, "/page/samples", partition="train", group="g9").json()
        assert (gone["group"], gone["rows"]) == (None, [])
        assert (told["group"]["reserved"], [row["values"]["reward"] for row in told["rows"]]) == (False, [0.5, 0.25])


def test_numbers_that_json_or_javascript_cannot_hold_are_text(server: ServerThread) -> None:
    with connect(server.addresses[0]) as client:
        client.register_partition("train", ["least", "seed"], 0, ["policy"])
        least = torch.full((1,), torch.finfo(torch.float64).min, dtype=torch.float64)
        client.put_samples(
            ["a"], "train", {"least": least, "seed": torch.tensor([2**53 + 1])}, [{"hash": -(2**53) - 1}]
        )
    text = Asked(server, "/page/sample", id="a").text()
    told = json.loads(text, parse_constant=pytest.fail)
    assert [one["value"] for one in told["values"]] == [["-1.7977e+308"], [str(2**53 + 1)]]
    assert told["row"]["tags"] == {"hash": str(-(2**53) - 1)}


def test_an_object_that_python_cannot_hold_hides_no_others(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = (np.array([4]), b"\x81\x91\x01\x01")  # as another client may put it: a map with a list for a key
    monkeypatch.setattr("dataplane_client._values.wire_columns.pack_objects", lambda *_: packed)
    with connect(server.addresses[0]) as client:
        client.register_partition("train", ["note"], 0, ["policy"])
        client.put_samples(["a"], "train", {"note": [None]})
    listed = Asked(server, "/page/samples", partition="train").json()
    assert [row["values"] for row in listed["rows"]] == [{"note": "not msgpack that can be read"}]
    (value,) = Asked(server, "/page/sample", id="a").json()["values"]
    assert value["value"] == "not msgpack that can be read"


@pytest.mark.parametrize(
    ("path", "query", "status", "words"),
    [
        ("samples", {"partition": "none", "group": "g1"}, 404, "'none'"),
        ("sample", {"id": "z"}, 404, "no partition has a sample 'z'"),
        ("sample", {"id": "z", "partition": "none"}, 404, "'none'"),
        ("samples", {"partition": "train", "state": "lost", "task": "policy"}, 400, "'lost' is not a state of a row"),
        ("samples", {"partition": "train", "page": "-1"}, 200, ""),
        ("dead", {"partition": "train", "task": "none"}, 404, "'none'"),
    ],
)
def test_what_is_not_there_is_refused_with_a_reason(
    server: ServerThread, path: str, query: dict[str, str], status: int, words: str
) -> None:
    with connect(server.addresses[0]) as client:
        fill(client)
    asked = Asked(server, f"/page/{path}", **query)
    assert asked.status == status
    assert words in asked.text()


# -- who may -----------------------------------------------------------------------------------------------------------


def test_beside_an_access_file_state_needs_the_role_of_metrics_and_rows_one_for_their_partition(
    guarded: ServerThread,
) -> None:
    with connect(guarded.addresses[0], credentials=Credentials(token=ROOT)) as client:
        fill(client)
    paths = {
        "/": {},
        "/page/app.js": {},
        "/page/events": {},
        "/page/sample": {"id": "a"},
        "/page/samples": {"partition": "train"},
    }
    found = {
        token: [Asked(guarded, path, token, **query).status for path, query in paths.items()]
        for token in ("", "wrong", *TOKENS)
    }
    assert found == {
        "": [401, 200, 401, 401, 401],
        "wrong": [401, 200, 401, 401, 401],
        "prometheus": [200, 200, 200, 200, 200],
        "trainer": [200, 200, 403, 200, 200],
        "rollout": [200, 200, 403, 404, 403],
    }
