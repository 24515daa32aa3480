"""Rows that grow while they are generated, and reads of a part of their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.integration.conftest import Eventually
from torch.nested import nested_tensor

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.columns import read_columns
from dataplane_client.errors import (
    AppendConflictError,
    DataPlaneError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    PreconditionError,
    UnsupportedTypeError,
)
from dataplane_client.options import TransportChoice
from dataplane_server.testing import ServerThread

FIELDS = ["tokens", "logprobs", "experts", "reward"]
Columns = dict[str, torch.Tensor]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with three per-token fields (experts: 8 a token in each of 2 layers), reward, and the task train."""
    client.register_partition("p", FIELDS, 4, ["train"], per_token_fields=FIELDS[:3])
    return client


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return nested_tensor(rows, layout=torch.jagged)


def generated(lengths: list[int], seed: int = 0) -> Columns:
    """Random values of rows of so many tokens."""
    torch.manual_seed(seed)
    return {
        "tokens": jagged([torch.randint(0, 1 << 40, (n,)) for n in lengths]),
        "logprobs": jagged([torch.randn(n) for n in lengths]),
        "experts": jagged([torch.randint(0, 255, (n, 2, 8), dtype=torch.uint8) for n in lengths]),
    }


def part(columns: Columns, begin: int, end: int) -> Columns:
    """The same tokens of all rows."""
    return {name: jagged([row[begin:end] for row in rows.unbind()]) for name, rows in columns.items()}


def assert_rows(got: object, expected: Columns) -> None:
    for name, rows in expected.items():
        for row, wanted in zip(got[name].unbind(), rows.unbind(), strict=True):  # type: ignore[index]
            assert torch.equal(row, wanted), name


@pytest.mark.parametrize("step", [7, 3000], ids=["small", "large"])
def test_rows_that_grow_step_by_step_are_what_they_would_be_if_they_were_put_at_once(
    flow: DataPlaneClient, step: int
) -> None:
    whole = generated([4 * step] * 3)
    for begin in range(0, 4 * step, step):
        receipt = flow.append_tokens(["a", "b", "c"], "p", part(whole, begin, begin + step))
    assert_rows(flow.get_samples(["a", "b", "c"], "p", FIELDS[:3]), whole)
    meta = flow.claim("p", "train", ["tokens"], 3).meta
    assert meta.sequence_lengths == [4 * step] * 3
    assert meta.generations == receipt.generations
    info = flow.partition("p")
    assert info.size_bytes == info.written_bytes_total == 3 * 4 * step * (8 + 4 + 16)


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


def test_rows_of_a_group_grow_unseen_until_it_is_committed(flow: DataPlaneClient) -> None:
    whole = generated([12, 12])
    with flow.reserve_group("p", "g") as group:
        group.add(["a", "b"], part(whole, 0, 4), [{"n": 1}, {}])
        for begin in (4, 8):
            group.append_tokens(["a", "b"], part(whole, begin, begin + 4), [{"last": begin}] * 2)
        with pytest.raises(PreconditionError, match="'a' belongs to the reserved group 'g'"):
            flow.append_tokens(["a"], "p", part(generated([1]), 0, 1))
        with pytest.raises(NotFoundError, match="'c'"):
            group.append_tokens(["c"], part(generated([1]), 0, 1))
    meta = flow.claim("p", "train", FIELDS[:3], 2).meta
    assert meta.tags == [{"n": 1, "last": 8}, {"last": 8}]
    assert_rows(flow.get_data(meta), whole)


def test_readers_see_a_row_before_or_after_an_append(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, address: str, transport: TransportChoice
) -> None:
    """A row's every field has the row's length, and its tokens count up."""
    steps, step = 30, 2000
    flow.append_tokens(["a"], "p", {name: torch.zeros(1, 0, dtype=torch.int64) for name in ("tokens", "logprobs")})

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


async def test_appends_of_many_writers_to_their_own_rows_lose_nothing(
    flow: DataPlaneClient, async_client: aio.AsyncDataPlaneClient
) -> None:
    async def grow(row: int) -> None:
        for token in range(20):
            await async_client.append_tokens([f"s{row}"], "p", {"tokens": torch.full((1, 3), 100 * row + token)})

    await asyncio.gather(*map(grow, range(8)))
    got = flow.get_samples([f"s{row}" for row in range(8)], "p", ["tokens"])["tokens"]
    for row, tokens in enumerate(got.unbind()):
        assert tokens.tolist() == [100 * row + token for token in range(20) for _ in range(3)]


def test_of_two_appends_to_a_row_at_once_one_is_refused_or_both_are_in_it(
    flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    n = 400_000  # tokens, so that an append takes some time

    def append(value: int) -> str:
        try:
            flow.append_tokens(["a"], "p", {"tokens": torch.full((1, n), value)})
        except AppendConflictError as conflict:
            return str(conflict)
        return str(value)

    said = list(threads.map(append, range(1, 5)))
    done = [one for one in said if one.isdecimal()]
    assert all("sample 'a' were changed" in one for one in said if one not in done)
    assert done
    tokens = flow.get_samples(["a"], "p", ["tokens"])["tokens"][0]
    assert len(tokens) == n * len(done)
    assert sorted(tokens[::n].tolist()) == sorted(map(int, done))
    assert torch.equal(tokens, tokens[::n].repeat_interleave(n))


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        pytest.param(None, InvalidArgumentError, "at least one column", id="nothing"),
        pytest.param({"reward": torch.zeros(1, 2)}, InvalidArgumentError, "'reward'.*per-token", id="not per-token"),
        pytest.param(
            {"tokens": torch.ones(1, 2, dtype=torch.int64)},
            InvalidArgumentError,
            "sample 'a': field 'tokens' after the append has 5 tokens, field 'logprobs' as stored has 3",
            id="a field is missing",
        ),
        pytest.param({"tokens": torch.ones(2, 2, dtype=torch.int64)}, InvalidArgumentError, "2 rows", id="rows"),
        pytest.param({"tokens": torch.ones(1, 2)}, InvalidArgumentError, "'tokens'.*float32", id="another type"),
        pytest.param(
            {"tokens": np.array([{"n": 1}], object)}, InvalidArgumentError, "'tokens'.*column is object", id="objects"
        ),
    ],
)
def test_an_append_that_makes_no_sense_changes_nothing(
    flow: DataPlaneClient, fields: Columns, kind: type[DataPlaneError], text: str
) -> None:
    flow.put_samples(["a"], "p", part(generated([3]), 0, 3))
    before = flow.partition("p")
    with pytest.raises(kind, match=text):
        flow.append_tokens(["a"], "p", fields)
    assert flow.partition("p") == before


@pytest.fixture
def tight(small_server: ServerThread, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    """A client of a server with 64 KiB; partition p with one per-token field."""
    with connect(small_server.addresses[0], timeout_s=20.0, transport=transport) as client:
        client.register_partition("p", ["tokens"], 4, ["train"], per_token_fields=["tokens"])
        yield client


def test_an_append_needs_space_for_old_and_new_tokens_for_a_moment(
    tight: DataPlaneClient, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    tight.append_tokens(["a", "b"], "p", {"tokens": torch.zeros(2, 20 << 10, dtype=torch.uint8)})
    more = {"tokens": torch.ones(1, 10 << 10, dtype=torch.uint8)}
    with pytest.raises(OutOfSpaceError, match="the append, with what its rows have, holds 30 KiB of values"):
        tight.append_tokens(["a"], "p", more, timeout_s=0.05)
    waiting = threads.submit(tight.append_tokens, ["a"], "p", more)
    eventually(lambda: tight.server_status().waiting_puts == 1)
    tight.clear_samples(["b"], "p")
    waiting.result(20)
    assert tight.server_status().memory_used_bytes == 30 << 10
    with pytest.raises(InvalidArgumentError, match="beside the 30 KiB that its rows have"):
        tight.append_tokens(["a"], "p", {"tokens": torch.ones(1, 10 << 10, dtype=torch.uint8)})
    tokens = tight.get_samples(["a"], "p", ["tokens"])["tokens"][0]
    assert tokens.tolist() == [0] * (20 << 10) + [1] * (10 << 10)


@pytest.mark.parametrize("layout", ["jagged", "padded"])
def test_two_context_parallel_ranks_that_read_halves_have_the_whole(flow: DataPlaneClient, layout: str) -> None:
    lengths = [3000, 4096, 17, 0]
    whole = generated(lengths)
    ids = ["a", "b", "c", "d"]
    meta = flow.put_samples(ids, "p", {**whole, "reward": torch.arange(4.0)})
    before = flow.partition("p").read_bytes_total
    bounds = [[(0, n // 2), (n // 2, n)] for n in lengths]
    halves = []
    for rank in range(2):
        ranges = [of_row[rank] for of_row in bounds]
        batch = flow.read_columns(meta, FIELDS, token_ranges=ranges, layout=layout)  # type: ignore[arg-type]
        assert batch["reward"].tolist() == [0.0, 1.0, 2.0, 3.0]
        sizes = [end - start for start, end in ranges]
        halves.append({name: [row[:n] for row, n in zip(batch[name].unbind(), sizes, strict=True)] for name in whole})
        if layout == "padded":
            assert batch["experts"].shape == (4, max(sizes), 2, 8)
    for name, rows in whole.items():
        for row, first, second in zip(rows.unbind(), halves[0][name], halves[1][name], strict=True):
            assert torch.equal(torch.cat([first, second]), row)
    assert flow.partition("p").read_bytes_total - before == sum(lengths) * (8 + 4 + 16) + 2 * 4 * 4


def test_one_range_holds_for_all_rows_and_every_verb(flow: DataPlaneClient) -> None:
    whole = generated([9, 5])
    meta = flow.put_samples(["a", "b"], "p", whole)
    middle = {name: jagged([rows[0][4:7], rows[1][4:7]]) for name, rows in whole.items()}
    assert_rows(flow.get_samples(["a", "b"], "p", FIELDS[:3], token_range=(4, 7)), middle)
    assert_rows(flow.get_data(meta, token_range=(4, 7)), middle)
    padded = read_columns(flow, meta, ["tokens"], token_range=(4, 7), pad_value_dict={"tokens": -1})
    assert padded["tokens"].tolist() == [[*whole["tokens"][0][4:7].tolist()], [int(whole["tokens"][1][4]), -1, -1]]
    end = flow.read_columns(meta, ["tokens"], token_range=(4, None), layout="jagged")["tokens"]
    assert [len(row) for row in end.unbind()] == [5, 1]


@pytest.mark.parametrize(
    ("ranges", "kind", "text"),
    [
        ({"token_range": (3, 1)}, InvalidArgumentError, "the end of token_range must be 3 to"),
        ({"token_range": (-1, 1)}, InvalidArgumentError, "the start of token_range must be at least 0, got -1"),
        ({"token_range": 5}, UnsupportedTypeError, r"token_range must be \(start, end\), got 5"),
        ({"token_range": (0.5, 1)}, UnsupportedTypeError, "the start of token_range must be an int"),
        ({"token_ranges": [(0, 1)]}, InvalidArgumentError, "token_ranges for 1 rows, but the call names 2 samples"),
        ({"token_ranges": [(0, 1), (2, 1)]}, InvalidArgumentError, "token range of sample 'b'"),
        ({"token_range": (0, 1), "token_ranges": [(0, 1)] * 2}, InvalidArgumentError, "not both"),
    ],
    ids=str,
)
def test_a_range_that_makes_no_sense_is_refused(
    flow: DataPlaneClient, ranges: dict[str, object], kind: type[DataPlaneError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        flow.get_samples(["a", "b"], "p", ["tokens"], **ranges)  # type: ignore[arg-type]
