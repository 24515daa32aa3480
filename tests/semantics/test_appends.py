"""Appends: rows whose per-token values grow, while readers see what was there before or all of what is there after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.conftest import ON_ONE_WAY
from tests.semantics.token_rows import FIELDS, Columns, assert_rows, generated, jagged
from tests.semantics.token_rows import flow as flow
from tests.waiting import eventually
from torch.nested import nested_tensor

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import InvalidArgumentError, NotFoundError, OutOfSpaceError
from dataplane_client.options import TransportChoice
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import PutSamples
from dataplane_server.testing import ServerThread


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A caller of a data plane of 4 KiB with partition p: per-token fields a and b, field c."""
    one = new_caller(memory_bytes=4096)
    one.register(("a", "b", "c"), per_token_fields=frozenset("ab"))
    return one


def append(caller: Caller, *sample_ids: str, **lengths: list[int]) -> PutSamples:
    return caller.put_call(sample_ids, lengths, append=True)


def length_of(caller: Caller, sample_id: str) -> int:
    resident = caller.plane.sample("p", sample_id).resident
    assert resident is not None
    return resident.sequence_length


@pytest.fixture
def two(caller: Caller) -> Caller:
    """Rows s1 and s2 with 3 and 5 bytes in a, from offset 0."""
    caller.put(caller.put_call(["s1", "s2"], {"a": [3, 5]}))
    return caller


# -- who may append ----------------------------------------------------------------------------------------------------


def test_rows_of_a_reserved_group_grow_unseen_and_under_its_name_only(via: AnyCaller) -> None:
    via.register(per_token_fields=["a", "b"])
    group = via.reserve("g", "xy")
    group.append("xy", 2, tags={"n": 1})
    group.append("xy", 3, tags={"last": 3})
    group.append("y", 1)
    with via.refuses("ROW_RESERVED", "'x'", "'g'"):
        via.append("x")
    with via.refuses("SAMPLE_NOT_FOUND", "'z'"):
        group.append("z")
    group.finish()
    claim = via.claim("a", size=2)
    assert (claim.ids, claim.sequence_lengths, claim.tags) == ("xy", [5, 6], [{"n": 1, "last": 3}] * 2)
    assert via.sizes("xy", "a") == [5, 6]


def test_a_claimed_row_grows_as_it_can_be_put(two: Caller) -> None:
    claim_id = two.take("a").claim_id
    two.put(append(two, "s1", a=[1]))
    two.put(two.put_call(["s1"], {"a": [1]}, claim_id=claim_id, append=True))
    assert length_of(two, "s1") == 5
    two.commit(claim_id)
    with two.refuses(Reason.CLAIM_NOT_FOUND, claim_id):
        two.apply(two.put_call(["s1"], {"a": [1]}, claim_id=claim_id, append=True))


@ON_ONE_WAY
def test_a_row_that_was_cleared_is_not_made_of_its_last_tokens(flow: DataPlaneClient) -> None:
    more = {"tokens": torch.tensor([[4]])}
    flow.append_tokens(["a", "b"], "p", {"tokens": torch.tensor([[1, 2, 3], [4, 5, 6]])}, create=True)
    flow.clear_samples(["a"], "p")
    with pytest.raises(NotFoundError, match=r"'a'.*create=True"):
        flow.append_tokens(["b", "a"], "p", {"tokens": torch.tensor([[7], [4]])})
    with pytest.raises(NotFoundError, match="'a'"):
        flow.append_tokens(["a"], "p", more)
    assert flow.list_samples("p").meta.sequence_lengths == [3]
    flow.append_tokens(["a"], "p", more, create=True)
    assert flow.get_samples(["a"], "p", ["tokens"])["tokens"][0].tolist() == [4]


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "more", "reason", "words"),
    [
        pytest.param({}, {}, Reason.INVALID_REQUEST, ("at least one column",), id="nothing"),
        pytest.param(
            {},
            {"columns": [ColumnSpec("a", Shape("dense", "uint8", (1,)))]},
            Reason.INVALID_REQUEST,
            ("'a'", "its column is dense"),
            id="dense",
        ),
        pytest.param({"a": [(1 << 31) - 2]}, {}, Reason.INVALID_REQUEST, ("row 0", "2147483649"), id="too long"),
        pytest.param({"a": [4091]}, {}, Reason.PUT_TOO_LARGE, ("append", "3.998 KiB", "beside the 3"), id="too large"),
    ],
)
def test_an_append_that_cannot_be_is_refused(
    two: Caller, lengths: dict[str, list[int]], more: dict[str, object], reason: Reason, words: tuple[str, ...]
) -> None:
    with two.refuses(reason, *words):
        two.apply(two.put_call(["s1"], lengths, append=True, **more))  # type: ignore[arg-type]


# -- rows that change meanwhile ----------------------------------------------------------------------------------------


def replace(caller: Caller, field: str = "a", size: int = 3) -> None:
    caller.clear(["s1"])
    caller.put_rows(["s1"], field, size=size)


def commit_columns(caller: Caller) -> None:
    commit = caller.commit_call(caller.take("a").claim_id, {"a": [3]})
    caller.finish(caller.begin(commit).ticket)


CHANGES: dict[str, Callable[[Caller], object]] = {
    "put as much": lambda caller: caller.put_rows(["s1"], "a", size=3),
    "put an empty value": lambda caller: caller.put_rows(["s1"], "a", size=0),
    "clear": lambda caller: caller.clear(["s1"]),
    "replace": replace,
    "replace by an empty row": lambda caller: replace(caller, "c"),
    "append more": lambda caller: caller.put(append(caller, "s1", a=[1])),
    "commit columns": commit_columns,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_row_whose_values_change_while_entries_arrive_is_not_appended_to(
    two: Caller, change: Callable[[Caller], object]
) -> None:
    begun = two.begin(append(two, "s2", "s1", a=[1, 1]))
    change(two)
    two.plane.take_effects()
    left = two.state()[0]
    with pytest.raises(Refusal, match="'s1'") as caught:
        two.finish(begun.ticket)
    assert caught.value.reason is Reason.APPEND_CONFLICT
    assert two.state()[0] == left
    assert two.used == two.plane.partition_info("p").size_bytes


# -- clients -----------------------------------------------------------------------------------------------------------


def part(columns: Columns, begin: int, end: int) -> Columns:
    """The same tokens of all rows."""
    return {name: jagged([row[begin:end] for row in rows.unbind()]) for name, rows in columns.items()}


@pytest.mark.parametrize("step", [7, 3000], ids=["small", "large"])
def test_rows_that_grow_step_by_step_are_what_they_would_be_if_they_were_put_at_once(
    flow: DataPlaneClient, step: int
) -> None:
    whole = generated([4 * step] * 3)
    for begin in range(0, 4 * step, step):
        receipt = flow.append_tokens(["a", "b", "c"], "p", part(whole, begin, begin + step), create=begin == 0)
    assert_rows(flow.get_samples(["a", "b", "c"], "p", FIELDS[:3]), whole)
    meta = flow.claim("p", "train", ["tokens"], 3).meta
    assert meta.sequence_lengths == [4 * step] * 3
    assert meta.generations == receipt.generations
    info = flow.partition("p")
    assert info.size_bytes == info.written_bytes_total == 3 * 4 * step * (8 + 4 + 16)


@ON_ONE_WAY
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(torch.tensor([[3, 4], [5, 6]]), id="k tokens each"),
        pytest.param(nested_tensor([torch.tensor([3, 4]), torch.tensor([5, 6])], layout=torch.jagged), id="jagged"),
    ],
)
def test_new_tokens_may_come_as_a_rectangle(flow: DataPlaneClient, more: torch.Tensor) -> None:
    flow.put_samples(["a", "b"], "p", {"tokens": jagged([torch.tensor([1]), torch.tensor([2, 2])])})
    flow.append_tokens(["a", "b"], "p", {"tokens": more})
    flow.append_tokens(["a", "b"], "p", {"tokens": torch.tensor([7, 8])})
    got = flow.get_samples(["a", "b"], "p", ["tokens"])["tokens"]
    assert [row.tolist() for row in got.unbind()] == [[1, 3, 4, 7], [2, 2, 5, 6, 8]]


def test_readers_see_a_row_before_or_after_an_append(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, address: str, transport: TransportChoice
) -> None:
    """A row's every field has the row's length, and its tokens count up."""
    steps, step = 30, 2000
    flow.append_tokens(
        ["a"], "p", {name: torch.zeros(1, 0, dtype=torch.int64) for name in ("tokens", "logprobs")}, create=True
    )

    def write() -> None:
        with connect(address, transport=transport) as writer:
            for begin in range(0, steps * step, step):
                more = torch.arange(begin, begin + step).reshape(1, step)
                writer.append_tokens(["a"], "p", {"tokens": more, "logprobs": more})

    writing = threads.submit(write)
    while True:
        over = writing.done()
        got = flow.get_samples(["a"], "p", ["tokens", "logprobs"])
        tokens = got["tokens"][0]
        assert len(tokens) % step == 0
        assert torch.equal(tokens, torch.arange(len(tokens)))
        assert torch.equal(got["logprobs"][0], tokens)
        if over:
            break
    writing.result()
    assert len(tokens) == steps * step


@pytest.fixture
def tight(small_server: ServerThread, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    """A client of a server with 64 KiB; partition p with one per-token field."""
    with connect(small_server.addresses[0], timeout_s=200.0, transport=transport) as client:
        client.register_partition("p", ["tokens"], 4, ["train"], per_token_fields=["tokens"])
        yield client


@pytest.mark.parametrize("way", ["grpc", "shm"], indirect=True)
def test_an_append_needs_space_for_old_and_new_tokens_for_a_moment(
    tight: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    tight.append_tokens(["a", "b"], "p", {"tokens": torch.zeros(2, 20 << 10, dtype=torch.uint8)}, create=True)
    more = {"tokens": torch.ones(1, 10 << 10, dtype=torch.uint8)}
    with pytest.raises(OutOfSpaceError, match="30 KiB"):
        tight.append_tokens(["a"], "p", more, timeout_s=0.05)
    waiting = threads.submit(tight.append_tokens, ["a"], "p", more)
    eventually(lambda: tight.server_status().waiting_puts == 1)
    tight.clear_samples(["b"], "p")
    waiting.result(200)
    assert tight.server_status().memory_used_bytes == 30 << 10
    with pytest.raises(InvalidArgumentError, match="30 KiB"):
        tight.append_tokens(["a"], "p", {"tokens": torch.ones(1, 10 << 10, dtype=torch.uint8)})
    tokens = tight.get_samples(["a"], "p", ["tokens"])["tokens"][0]
    assert tokens.tolist() == [0] * (20 << 10) + [1] * (10 << 10)


@ON_ONE_WAY
@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        pytest.param(torch.ones(2, 2, dtype=torch.int64), "2 rows", id="rows"),
        pytest.param(np.array([{"n": 1}], object), "'tokens'.*object", id="objects"),
    ],
)
def test_columns_that_no_row_could_grow_by_are_refused_to_a_client_and_change_nothing(
    flow: DataPlaneClient, tokens: torch.Tensor, words: str
) -> None:
    flow.put_samples(["a"], "p", generated([3]))
    before = flow.partition("p")
    with pytest.raises(InvalidArgumentError, match=words):
        flow.append_tokens(["a"], "p", {"tokens": tokens})
    assert flow.partition("p") == before
