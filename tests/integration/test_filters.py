"""Filters from end to end: rows that are listed, cleared and put as an expression says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest
import torch

from dataplane_client import aio
from dataplane_client._requests import new_request_id
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ConditionFailedError, InvalidArgumentError
from dataplane_client.filters import Where
from dataplane_client.meta import Tag
from rl_dataplane.v1 import data_plane_pb2 as pb

ROWS = [f"s{row}" for row in range(6)]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows of weight versions 0 to 2, with a std but for the last one, of two sources."""
    client.register_partition("p", ["a"], 6, ["train"])
    tags: list[dict[str, Tag]] = [{"weight_version": row // 2, "std": row / 10} for row in range(5)]
    sources: list[dict[str, Tag]] = [{"source": source} for source in ("m", "c", "m", "c", "m", None)]
    client.put_samples(ROWS, "p", {"a": torch.arange(6)}, sources, sequence_lengths=[1, 2, 3, 4, 5, 6])
    client.put_samples(ROWS[:5], "p", tags=tags)
    return client


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("std > 0.1", "234"),
        ("not std > 0.1", "015"),
        ("0.1 <= std < 0.3 or std is null", "125"),
        ("source == 'm' and staleness >= 1", "02"),
        ("source != 'm'", "13"),
        ("staleness is null or staleness == 0", "45"),
        ("sequence_length in (2, 6, 'x')", "15"),
        ("source not in ['m']", "135"),
        ("tags['source'] is null", "5"),
        ("age_s < 600 and weight_version == 1", "23"),
        ({"source": "c", "weight_version": 1}, "3"),
        ({"std": None}, "5"),
        ("nothing == 1", ""),
    ],
)
def test_rows_are_listed_and_cleared_as_an_expression_says(flow: DataPlaneClient, where: Where, rows: str) -> None:
    fitting = [f"s{row}" for row in rows]
    assert flow.list_samples("p", where=where).meta.sample_ids == fitting
    assert flow.clear_samples(ROWS[:1], "p", where=where) == len(fitting[:1]) * ("0" in rows)
    assert flow.clear_samples(None, "p", where=where) == len(set(fitting) - {"s0"})
    assert flow.list_samples("p").meta.sample_ids == [row for row in ROWS if row not in fitting]


def test_a_filter_that_the_client_cannot_read_is_refused_before_anything_is_sent(flow: DataPlaneClient) -> None:
    with pytest.raises(InvalidArgumentError, match=r"clear_samples in 'p': filter 'std > high', column 7: .* string"):
        flow.clear_samples(None, "p", where="std > high")
    with pytest.raises(InvalidArgumentError, match="a filter has at most 64 terms, got 131"):
        flow.list_samples("p", where=" or ".join(f"n == {number}" for number in range(66)))
    assert len(flow.list_samples("p").meta) == 6


def test_of_many_callers_that_take_a_row_one_does(flow: DataPlaneClient) -> None:
    flow.put_samples(["s0"], "p", tags=[{"state": "new"}])

    def take(caller: int) -> bool:
        try:
            flow.put_samples(["s0"], "p", tags=[{"state": "taken", "by": caller}], only_if="state == 'new'")
        except ConditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        took = list(threads.map(take, range(8)))
    assert took.count(True) == 1
    assert flow.list_samples("p", where={"state": "taken", "by": took.index(True)}).meta.sample_ids == ["s0"]


def test_a_refused_condition_names_the_row_and_changes_nothing(flow: DataPlaneClient) -> None:
    before = flow.list_samples("p")
    with pytest.raises(ConditionFailedError, match=r"sample 's1' does not fit only_if; nothing was put") as caught:
        flow.put_samples(["s0", "s1"], "p", {"a": torch.zeros(2, dtype=torch.int64)}, only_if={"source": "m"})
    assert caught.value.details == {"partition_id": "p", "sample_id": "s1"}
    with pytest.raises(ConditionFailedError, match="sample 's9' does not exist"):
        flow.put_samples(["s9"], "p", {"a": torch.zeros(1, dtype=torch.int64)}, only_if="source is null")
    assert flow.list_samples("p") == before
    assert flow.get_samples(["s1"], "p", ["a"])["a"].tolist() == [1]


def test_rows_of_a_group_are_put_under_a_condition_as_well(flow: DataPlaneClient) -> None:
    with flow.reserve_group("p", "g", ["g0"], weight_version=3) as group:
        group.put(["g0"], {"a": torch.arange(1)}, only_if="weight_version == 3")
        with pytest.raises(ConditionFailedError, match="'g0'"):
            group.put(["g0"], tags=[{"std": 1}], only_if="std == 0")


async def test_the_asynchronous_client_takes_the_same_filters(flow: DataPlaneClient, address: str) -> None:
    async with await aio.connect(address) as client:
        assert (await client.list_samples("p", where="std >= 0.4")).meta.sample_ids == ["s4"]
        assert await client.clear_samples(None, "p", where="std >= 0.4") == 1


EQUAL = pb.FILTER_OPERATOR_EQUAL


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (pb.FilterTerm(tag="a"), "filter, term 1: operator 0 is unknown to this server; it knows 1, 2, "),
        (pb.FilterTerm(operator=99, tag="a"), "filter, term 1: operator 99 is unknown"),  # type: ignore[arg-type]
        (pb.FilterTerm(operator=EQUAL, fact=9), "fact 9 is unknown to this server; it knows 1, 2, 3"),  # type: ignore[arg-type]
        (pb.FilterTerm(operator=EQUAL, fact=1, tag="a"), "it names a fact and the tag 'a'"),  # type: ignore[arg-type]
        (pb.FilterTerm(operator=EQUAL, tag="a", values=b"\xc1"), "its values are not valid msgpack"),
        (pb.FilterTerm(operator=EQUAL, tag="a", values=msgpack.packb(1)), "must be a msgpack array, got int"),
        (pb.FilterTerm(operator=EQUAL, tag="a", values=msgpack.packb([[1]])), "a value is a number of at most 64 bits"),
        (
            pb.FilterTerm(operator=EQUAL, tag="a", values=msgpack.packb([None])),
            "a value is a number of at most 64 bits",
        ),
        (pb.FilterTerm(operator=EQUAL, tag="a"), "term 1 ('==' of 'a'): it has 1 values, got 0"),
    ],
)
async def test_a_term_that_the_server_does_not_understand_is_refused_in_words(
    flow: DataPlaneClient, term: pb.FilterTerm, words: str
) -> None:
    request = pb.ClearSamplesRequest(
        request_id=new_request_id(), partition_id="p", whole_partition=True, where=pb.Filter(terms=[term])
    )
    async with await aio.connect(flow.target) as client:
        with pytest.raises(InvalidArgumentError) as caught:
            await client._transport.unary("ClearSamples", request, None)
    assert words in str(caught.value)
