"""Claims and groups over HTTP: what is held, for how long, and what is told of what was lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import socket
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.access.conftest import hashed
from tests.integration.faults.proxy import FaultProxy
from tests.waiting import eventually, soon

from dataplane_client import Credentials, DataPlaneClient, aio, connect
from dataplane_client.aio import AsyncClaim, AsyncGroup
from dataplane_client.errors import ClaimFencedError, GroupFencedError, OutOfSpaceError
from dataplane_http import app, columns
from dataplane_http.__main__ import Gateway
from dataplane_http.errors import error_answer
from dataplane_http.front import MAX_LONG_BODIES, Door
from dataplane_http.held import MAX_HELD, Held
from dataplane_http.models import MAX_CLAIMED
from dataplane_http.tests.asking import Ask, ask_at
from dataplane_http.tests.conftest import LOOPBACK, running_gateway
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

CLAIMS = "/v1/partitions/p/tasks/train/claims"
ROWS = {"input_ids": [5, 6, 7], "reward": 0.5, "answer": {"text": "é", "tries": [1, None]}}


def put(ask: Ask, *names: str) -> None:
    samples = [{"sample_id": name, "fields": ROWS, "tags": {"n": name}} for name in names]
    assert ask("POST", "/v1/partitions/p/samples", {"samples": samples}).status == 200


def claim(ask: Ask, rows: int = 1, **others: Any) -> str:
    answer = ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": rows, **others})
    assert answer.status == 200, answer.body
    return str(answer.body["claim_id"])


def test_a_whole_round(ask: Ask, client: DataPlaneClient) -> None:
    fields = {"fields": [*ROWS, "score"], "per_token_fields": ["input_ids"], "dtypes": {"score": "float64"}}
    definition = {**fields, "tasks": ["train", "judge"]}
    assert ask("PUT", "/v1/partitions/p", definition).body["outcome"] == "created"
    assert ask("PUT", "/v1/partitions/p", definition).body["outcome"] == "unchanged"
    assert [partition["partition_id"] for partition in ask("GET", "/v1/partitions").body] == ["p"]
    put(ask, "a", "b")
    claimed = ask("POST", CLAIMS, {"fields": list(ROWS), "batch_size": 8, "min_size": 2, "where": "n != 'c'"}).body
    assert [(row["sample_id"], row["tags"], row["sequence_length"]) for row in claimed["samples"]] == [
        ("a", {"n": "a"}, 3),
        ("b", {"n": "b"}, 3),
    ]
    at = f"/v1/claims/{claimed['claim_id']}"
    read = ask("GET", f"{at}?field=input_ids&field=reward&field=answer")
    assert read.body == {"samples": [{"sample_id": name, "fields": ROWS} for name in "ab"]}
    scores = [{"sample_id": name, "fields": {"score": 1.5}} for name in "ab"]
    turned = ask("POST", f"{at}/commit", {"samples": scores[::-1]})
    assert turned.error == (400, "INVALID_REQUEST")
    tagged = ask("POST", f"{at}/commit", {"samples": [{**score, "tags": {"n": 1}} for score in scores]})
    assert tagged.error == (400, "INVALID_REQUEST")  # a commit writes no tags
    assert ask("POST", f"{at}/commit", {"samples": scores}).body == {"rows": 2}
    assert ask("POST", f"{at}/commit", {"samples": scores}).body == {"rows": 2}
    assert client.get_samples(["a", "b"], "p", ["score"])["score"].tolist() == [1.5, 1.5]
    assert client.partition("p").task("train").consumed_rows_total == 2
    assert ask("GET", f"{at}?field=reward").error == (404, "CLAIM_NOT_FOUND")
    client.close_partition("p")
    assert ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": 1}).error == (410, "END_OF_DATA")


def test_numbers_that_are_not_finite_are_null_and_what_json_has_not_is_refused(
    ask: Ask, client: DataPlaneClient, partition: str
) -> None:
    answers = [{"x": float("inf")}, b"bytes"]
    client.put_samples(["a", "b"], "p", {"reward": [float("nan"), 1.0], "logprobs": [[0.5], [float("-inf")]]})
    client.put_samples(["a"], "p", {"answer": [answers[0]]})
    at = f"/v1/claims/{claim(ask, 2)}"
    rows = ask("GET", f"{at}?field=reward&field=logprobs").body["samples"]
    assert [row["fields"] for row in rows] == [{"reward": None, "logprobs": [0.5]}, {"reward": 1.0, "logprobs": [None]}]
    client.put_samples(["b"], "p", {"answer": [answers[1]]})
    refused = ask("GET", f"{at}?field=answer")
    assert refused.error == (400, "FIELD_MISMATCH")
    assert (refused.body["error"]["field"], refused.body["error"]["sample_id"]) == ("answer", "a")


def test_a_value_whose_keys_are_not_text_is_refused(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    client.put_samples(["a"], "p", {"answer": [{"tries": [{1: "x", "1": "y"}]}], "reward": [1.0]})
    refused = ask("GET", f"/v1/claims/{claim(ask)}?field=answer")
    assert refused.error == (400, "FIELD_MISMATCH")
    assert (refused.body["error"]["field"], refused.body["error"]["sample_id"]) == ("answer", "a")


def test_a_long_commit_does_not_wait_for_puts_that_wait_for_memory(
    ask: Ask, client: DataPlaneClient, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_CALL_S", 200.0)
    put(ask, "a")
    at = f"/v1/claims/{claim(ask)}"
    client.put_samples(["big"], "p", {"answer": [b"x" * 900_000]})
    bodies = [
        {"samples": [{"sample_id": f"{number}", "fields": {"answer": "y" * 200_000}}]}
        for number in range(MAX_LONG_BODIES)
    ]
    with ThreadPoolExecutor(MAX_LONG_BODIES) as threads:
        puts = [threads.submit(ask, "POST", "/v1/partitions/p/samples", body) for body in bodies]
        eventually(lambda: client.server_status().waiting_puts == MAX_LONG_BODIES)
        long = json.dumps({"samples": [{"sample_id": "a", "fields": {"reward": 2}}]}) + " " * (65 << 10)
        assert ask("POST", f"{at}/commit", raw=long.encode()).body == {"rows": 1}
        assert not any(each.done() for each in puts)
        client.clear_samples(["big", "a"], "p")
        eventually(lambda: any(each.done() for each in puts))
        client.drop_partition("p")


def test_large_tensors_are_read_as_small_ones(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    flat = torch.arange(40_000, dtype=torch.float32)
    flat[::1000] = torch.nan
    image = torch.arange(3 * 20_000).to(torch.uint8).reshape(3, 20_000)
    pairs = torch.arange(40_000).to(torch.uint8).reshape(20_000, 2)
    client.register_partition("q", ["flat", "image", "pairs"], 0, ["train"])
    for name in "ab":
        client.put_samples([name], "q", {"flat": [flat], "image": image[None], "pairs": pairs[None]})
    claims = CLAIMS.replace("/p/", "/q/")
    at = ask("POST", claims, {"fields": ["flat"], "batch_size": 2}).body["claim_id"]
    rows = ask("GET", f"/v1/claims/{at}?field=flat&field=image&field=pairs").body["samples"]
    fields = {
        "flat": [None if number.isnan() else number.item() for number in flat],
        "image": image.tolist(),
        "pairs": pairs.tolist(),
    }
    assert rows == [{"sample_id": name, "fields": fields} for name in "ab"]


async def test_a_long_answer_leaves_the_event_loop_to_others(
    server: ServerThread, client: DataPlaneClient, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = torch.arange(800_000).to(torch.uint8)
    client.put_samples(["long"], "p", {"input_ids": [image]})
    listener, turn, turns = socket.create_server(("127.0.0.1", 0)), 0, set[int]()
    gateway = Gateway(server.addresses[0], LOOPBACK)
    ask = partial(asyncio.to_thread, ask_at(f"127.0.0.1:{listener.getsockname()[1]}"))

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def noted(*read: Any) -> Iterator[Iterator[str]]:
        return map(of_pieces, columns.json_rows(*read))

    def of_pieces(row: Iterator[str]) -> Iterator[str]:
        for piece in row:
            turns.add(turn)
            yield piece

    monkeypatch.setattr(app, "json_rows", noted)
    serving, counting = asyncio.create_task(gateway.serve(sockets=[listener])), asyncio.create_task(count())
    at = f"/v1/claims/{(await ask('POST', CLAIMS, {'fields': ['input_ids'], 'batch_size': 1})).body['claim_id']}"
    answer = await ask("GET", f"{at}?field=input_ids")
    assert answer.body["samples"][0]["fields"]["input_ids"] == image.tolist()
    assert len(turns) >= len(image) // (16 << 10)
    counting.cancel()
    gateway.should_exit = True
    await serving


def test_tags_that_are_not_finite_are_null(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    client.put_samples(["a"], "p", {"reward": [1.0]}, [{"std": float("nan"), "least": float("-inf")}])
    claimed = ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": 1}).body
    assert claimed["samples"][0]["tags"] == {"std": None, "least": None}


def test_fields_of_whole_groups_are_committed_however_many_rows_they_have(
    ask: Ask, client: DataPlaneClient, partition: str
) -> None:
    names = [f"{number}" for number in range(MAX_CLAIMED + 2)]
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for group, half in zip("ab", halves, strict=True):
        client.put_group("p", group, half, {"reward": torch.zeros(len(half))})
    at = f"/v1/claims/{claim(ask, 2, whole_groups=True)}"
    samples = [{"sample_id": name, "fields": {"done": True}} for name in names]
    assert ask("POST", f"{at}/commit", {"samples": samples}).body == {"rows": len(names)}
    assert client.get_samples(names[-1:], "p", ["done"])["done"].tolist() == [True]


def test_released_rows_return_to_the_task(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    put(ask, "a")
    at = f"/v1/claims/{claim(ask)}"
    assert ask("POST", f"{at}/release", {"reason": "judge failed"}).body == {"rows": 1}
    assert ask("POST", f"{at}/release", {}).body == {"rows": 1}
    again = ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": 1}).body
    assert [row["deliveries"] for row in again["samples"]] == [2]
    assert [event.reason for event in client.sample("p", "a").events if event.what == "released"] == ["judge failed"]


def test_what_has_ended_otherwise_is_not_said_to_be_done(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    put(ask, "a")
    at = f"/v1/claims/{claim(ask)}"
    assert ask("POST", f"{at}/release", {}).status == 200
    assert ask("POST", f"{at}/commit", {}).error == (404, "CLAIM_NOT_FOUND")
    assert client.partition("p").task("train").consumed_rows == 0
    at = f"/v1/groups/{reserve(ask, sample_ids=['b'])}"
    assert ask("POST", f"{at}/abort", {}).status == 200
    assert ask("POST", f"{at}/finish", {}).error == (409, "GROUP_FENCED")


def test_what_was_given_up_without_an_answer_is_given_up_again(
    server: ServerThread, client: DataPlaneClient, partition: str
) -> None:
    proxy = FaultProxy(server.addresses[0])
    with running_gateway(proxy.address) as gateway, ThreadPoolExecutor() as threads:
        ask = ask_at(gateway)
        put(ask, "a", "b")
        group = ask("POST", "/v1/partitions/p/groups", {"group_id": "g", "sample_ids": ["c"]}).body["reservation_id"]
        ends = [(f"/v1/claims/{claim(ask, 2)}/release", {"reason": "why"}), (f"/v1/groups/{group}/abort", {})]
        proxy.swallow = {"answers"}
        lost = list(threads.map(lambda end: ask("POST", *end).status, ends))
        eventually(
            lambda: not client.partition("p").task("train").claimed_rows and not client.partition("p").open_groups
        )
        proxy.reset_connections()
        assert {503, 504}.issuperset(lost)
        assert [ask("POST", *end).body for end in ends] == [{"rows": 2}, {"rows": 1}]
    proxy.close()


async def test_of_a_request_whose_claim_is_lost_nothing_is_kept_but_why() -> None:
    claims: Held[Any] = Held("claim", ClaimFencedError, lambda claim, why: claim.release(reason=why))
    claims.add("c", None, 60.0)

    def lose() -> weakref.ref[Door]:
        body = Door("of many bytes")
        with contextlib.suppress(ClaimFencedError), claims.using("c"):
            raise ClaimFencedError("lost", reason="CLAIM_FENCED")
        return weakref.ref(body)

    body = lose()
    gc.collect()
    assert body() is None
    with pytest.raises(ClaimFencedError, match="lost"), claims.using("c"):
        pass


async def test_a_lease_begins_anew_at_the_end_of_a_request() -> None:
    claims: Held[Any] = Held("claim", ClaimFencedError, lambda claim, why: claim.release(reason=why))
    claims.add("c", None, 60.0)
    with claims.using("c") as hold:
        hold.until = 0.0
    await claims.sweep()
    assert not claims.is_empty


def test_a_claim_that_nobody_names_for_its_lease_is_lost_and_says_so(
    ask: Ask, client: DataPlaneClient, partition: str
) -> None:
    put(ask, "a", "b")
    kept, lost = claim(ask, lease_s=60), claim(ask, lease_s=1)

    def is_back() -> bool:
        assert ask("POST", f"/v1/claims/{kept}/keep").status == 200
        return client.partition("p").task("train").ended_deliveries.get("released") == 1

    eventually(is_back)
    for method, path, body in (("GET", "?field=reward", None), ("POST", "/commit", {}), ("POST", "/keep", None)):
        answer = ask(method, f"/v1/claims/{lost}{path}", body)
        assert (answer.error, lost in answer.body["error"]["message"]) == ((409, "CLAIM_FENCED"), True)
    assert ask("POST", f"/v1/claims/{kept}/commit", {}).body == {"rows": 1}
    second = ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": 1}).body
    assert [(row["sample_id"], row["deliveries"]) for row in second["samples"]] == [("b", 2)]


def test_a_claim_that_the_server_has_ended_is_fenced(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    put(ask, "a")
    at = f"/v1/claims/{claim(ask)}"
    client.reset("p", "train")
    for _ in range(2):
        refused = ask("POST", f"{at}/commit", {})
        assert (refused.error, " at 127" in refused.body["error"]["message"]) == ((409, "CLAIM_FENCED"), False)


def test_the_rows_of_a_gateway_that_ends_return(server: ServerThread, client: DataPlaneClient, partition: str) -> None:
    with running_gateway(server.addresses[0]) as address:
        put(ask_at(address), "a")
        held_there = claim(ask_at(address))
        assert client.partition("p").task("train").claimed_rows == 1
    assert client.partition("p").task("train").claimed_rows == 0
    with running_gateway(server.addresses[0], LOOPBACK) as address:
        assert ask_at(address)("POST", f"/v1/claims/{held_there}/commit", {}).error == (404, "CLAIM_NOT_FOUND")


def test_a_claim_waits_and_a_caller_who_hangs_up_takes_nothing(
    ask: Ask, gateway: str, client: DataPlaneClient, partition: str
) -> None:
    early = ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": 1, "wait_s": 0.1})
    assert early.error == (504, "CLAIM_TIMEOUT")
    connection = http.client.HTTPConnection(gateway)
    body = json.dumps({"fields": ["reward"], "batch_size": 1, "wait_s": 60})
    connection.request("POST", CLAIMS, body, {"Content-Type": "application/json"})
    eventually(lambda: client.server_status().waiting_claims == 1)
    connection.close()
    eventually(lambda: client.server_status().waiting_claims == 0)
    put(ask, "a")
    assert client.partition("p").task("train").claimed_rows == 0


def test_a_claim_is_held_for_the_caller_with_its_token(ask: Ask, partition: str) -> None:
    put(ask, "a")
    at = f"/v1/claims/{claim(ask)}"
    other = {"Authorization": "Bearer another-caller"}
    assert ask("POST", f"{at}/commit", {}, headers=other).error == (404, "CLAIM_NOT_FOUND")
    assert ask("POST", f"{at}/commit", {}).body == {"rows": 1}


@pytest.mark.parametrize(
    ("token", "roles", "status"), [("newer", {"admin": ["p"]}, 401), ("rater", {"admin": ["q"]}, 403)]
)
def test_rows_return_of_a_caller_whose_token_or_role_has_ended(
    tmp_path: Path, token: str, roles: dict[str, list[str]], status: int
) -> None:
    file = tmp_path / "access.json"
    root = {"name": "root", "tokens": [hashed("root")], "roles": {"admin": [""]}}

    def admit(token: str, roles: dict[str, list[str]]) -> None:
        rater = {"name": "rater", "tokens": [hashed(token)], "roles": roles}
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"callers": [root, rater]}))
        new.replace(file)

    admit("rater", {"admin": ["p"]})
    config = ServerConfig(listen=("127.0.0.1:0",), limits=Limits(memory_bytes=1 << 20), access=file)
    server = ServerThread(config)
    try:
        with (
            connect(server.addresses[0], credentials=Credentials(token="root")) as client,  # noqa: S106  # of this test
            running_gateway(server.addresses[0], Door("127.0.0.1", tokens=True)) as address,
        ):
            client.register_partition("p", ["reward"], 0, ["train"])
            client.put_samples(["a"], "p", {"reward": [1.0]})
            ask = partial(ask_at(address), headers={"Authorization": "Bearer rater"})
            claim(ask, lease_s=4)  # the server notices within a second what it may not accept any more
            reserve(ask, lease_s=4)
            assert (client.partition("p").task("train").claimed_rows, client.partition("p").open_groups) == (1, 1)
            admit(token, roles)
            eventually(lambda: not client.partition("p").task("train").claimed_rows)
            eventually(lambda: not client.partition("p").open_groups)
            assert ask("GET", "/v1/partitions/p").status == status
    finally:
        server.stop()


async def test_a_caller_holds_a_bounded_number_of_claims() -> None:
    claims: Held[AsyncClaim] = Held("claim", ClaimFencedError, lambda claim, why: claim.release(reason=why))
    with contextlib.ExitStack() as rooms:
        for _ in range(MAX_HELD):
            rooms.enter_context(claims.room())
        with pytest.raises(OutOfSpaceError) as full, claims.room():
            pass
        answer = await error_answer(None, full.value)
        error = json.loads(bytes(answer.body))["error"]
        assert (answer.status_code, error["reason"], error["max_held"]) == (429, "LIMIT_REACHED", str(MAX_HELD))
    with claims.room():
        pass


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"batch_size": 4097}, "batch_size"),
        ({"wait_s": 61}, "wait_s"),
        ({"lease_s": 0.5}, "lease_s"),
        ({"x": 1}, "x"),
        ({"where": "std at x: 1"}, "claim from 'p': filter 'std at x: 1'"),
    ],
)
def test_a_claim_that_asks_for_too_much_is_refused(
    ask: Ask, partition: str, change: dict[str, object], key: str
) -> None:
    answer = ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": 1, **change})
    assert (answer.error, key in answer.body["error"]["message"]) == ((400, "INVALID_REQUEST"), True)


def reserve(ask: Ask, **others: Any) -> str:
    answer = ask("POST", "/v1/partitions/p/groups", {"group_id": "g", **others})
    assert answer.status == 200, answer.body
    return str(answer.body["reservation_id"])


def test_a_group_is_put_row_by_row_and_shown_whole(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    at = f"/v1/groups/{reserve(ask, weight_version=7)}"
    for name in "ab":
        rows = {"samples": [{"sample_id": name, "fields": {"reward": 1}}], "dtypes": {"reward": "float32"}}
        assert ask("POST", f"{at}/samples", rows).body == {"rows": 1}
    early = ask("POST", CLAIMS, {"fields": ["reward"], "batch_size": 1, "wait_s": 0.1})
    assert early.error == (504, "CLAIM_TIMEOUT")
    assert ask("POST", f"{at}/keep").status == 200
    for _ in range(2):
        assert ask("POST", f"{at}/finish", {"weight_version": 8}).body == {"rows": 2}
    with client.claim("p", "train", ["reward"], 1, whole_groups=True) as whole:
        (group,) = whole.groups
        assert (group.rows, group.start_weight_version, group.end_weight_version) == (2, 7, 8)


def test_a_group_that_is_aborted_or_left_leaves_nothing(ask: Ask, client: DataPlaneClient, partition: str) -> None:
    at = f"/v1/groups/{reserve(ask, sample_ids=['a'])}"
    assert ask("POST", f"{at}/finish", {}).error == (409, "GROUP_INCOMPLETE")
    assert ask("POST", f"{at}/abort", {"reason": "stop"}).body == {"rows": 1}
    left = reserve(ask, sample_ids=["a"], lease_s=1)
    eventually(lambda: client.partition("p").open_groups == 0)
    answer = ask("POST", f"/v1/groups/{left}/finish", {})
    assert (answer.error, left in answer.body["error"]["message"]) == ((409, "GROUP_FENCED"), True)
    assert client.partition("p").rows == 0


def test_a_group_ends_at_its_deadline_without_samples_that_failed_or_are_late(
    ask: Ask, client: DataPlaneClient, partition: str
) -> None:
    terms = {"sample_ids": list("abc"), "min_rows": 1, "complete_fields": ["reward"], "max_regenerations": 0}
    rows = {"samples": [{"sample_id": "a", "fields": {"reward": 1.0}}]}
    failed = {"sample_ids": ["b"], "reason": "no answer"}
    for deadline_s in (0.5, 5.0, 50.0):  # the first that is long enough for this machine
        at = f"/v1/groups/{reserve(ask, **terms, group_id=str(deadline_s), deadline_s=deadline_s)}"
        if ask("POST", f"{at}/fail", failed).body == {"rows": 1} and ask("POST", f"{at}/samples", rows).status == 200:
            break
    eventually(lambda: client.partition("p").open_groups == 0)
    for path, body in (("samples", {"samples": [{"sample_id": "c"}]}), ("keep", None), ("abort", {})):
        answer = ask("POST", f"{at}/{path}", body)
        assert answer.error == (409, "GROUP_FENCED")
        assert "committed with 1 rows" in answer.body["error"]["message"]
    for _ in range(2):
        assert ask("POST", f"{at}/finish", {}).body == {"rows": 1}
    assert ask("POST", f"{at}/keep").error == (409, "GROUP_FENCED")
    with client.claim("p", "train", ["reward"], 1, whole_groups=True) as whole:
        assert (whole.meta.sample_ids, whole.tags[0]["missing_rows"]) == (["a"], 2)
        client.clear_samples(["a"], "p")
    again = ask("POST", "/v1/partitions/p/groups", {"group_id": "g", "min_rows": 1})
    assert (again.error, "min_rows" in again.body["error"]["message"]) == ((400, "INVALID_REQUEST"), True)


async def with_a_row(caller: aio.AsyncDataPlaneClient, name: str, **terms: Any) -> AsyncGroup:
    """A reserved group whose row came before its deadline."""
    while True:
        group = await caller.reserve_group("p", name, **terms)
        with contextlib.suppress(GroupFencedError):
            await group.add([name], {"reward": [1.0]})
            return group


@pytest.mark.parametrize("min_rows", [0, 1])
async def test_a_group_that_the_server_has_ended_is_held_for_its_lease_and_said_to_have_ended_so(
    server: ServerThread, client: DataPlaneClient, partition: str, min_rows: int
) -> None:
    groups: Held[AsyncGroup] = Held("group", GroupFencedError, lambda group, why: group.abort(why))
    async with await aio.connect(server.addresses[0], timeout_s=200.0) as caller:
        for name, lease_s in (("asked", 600.0), ("left", 0.0)):
            groups.add(name, await with_a_row(caller, name, deadline_s=0.5, min_rows=min_rows or None), lease_s)
        await soon(lambda: not client.partition("p").open_groups)
        await groups.sweep()
        ended = "it was committed with 1 rows" if min_rows else "it has no min_rows"
        with pytest.raises(GroupFencedError, match=ended), groups.using("left"):
            pass
        with pytest.raises(GroupFencedError, match=ended), groups.using("asked") as hold:
            await hold.handle.add(["late"], {"reward": [1.0]})
        if min_rows:
            assert await groups.end("asked", "finish", lambda group: group.commit()) == 1
        else:
            with pytest.raises(GroupFencedError, match=ended):
                await groups.end("asked", "finish", lambda group: group.commit())
        assert groups.is_empty
