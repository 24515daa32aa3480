"""The tag that names the trace in which a row was put."""

from __future__ import annotations

import msgpack
import pytest

from dataplane_client import observe
from rl_dataplane.v1 import data_plane_pb2 as pb

MARK, OTHER = (f"00-{'ab' * 16}-{digit * 16}-01" for digit in "12")


def mark_rows(header: pb.PutSamplesHeader) -> None:
    observe.Call("PutSamples", "127.0.0.1:1", header, ()).mark_rows(MARK)


def producers_in(response: object) -> dict[str, int]:
    call = observe.Call("ClaimSamples", "127.0.0.1:1", None, ())
    call.answered(response)
    return call.producers


def packed(*rows: dict[str, object]) -> list[bytes]:
    return [msgpack.packb(row) if row else b"" for row in rows]


def unpacked(header: pb.PutSamplesHeader) -> list[dict[str, object]]:
    return [msgpack.unpackb(tags) for tags in header.row_tags]


def test_rows_without_tags_get_the_mark_alone() -> None:
    header = pb.PutSamplesHeader(sample_ids=["a", "b"])
    mark_rows(header)
    assert unpacked(header) == [{"traceparent": MARK}] * 2


def test_tags_of_each_row_stay_beside_the_mark() -> None:
    tags: list[dict[str, object]] = [{"version": 1}, {}, {"version": 2, "note": "x"}, {"version": 1}]
    header = pb.PutSamplesHeader(sample_ids=["a", "b", "c", "d"], row_tags=packed(*tags))
    mark_rows(header)
    assert unpacked(header) == [{**row, "traceparent": MARK} for row in tags]


def test_a_tag_of_this_name_that_the_caller_has_set_stays() -> None:
    header = pb.PutSamplesHeader(sample_ids=["a", "b"], row_tags=packed({"traceparent": OTHER}, {"traceparent": None}))
    mark_rows(header)
    assert unpacked(header) == [{"traceparent": OTHER}, {"traceparent": None}]


def test_a_row_with_the_greatest_number_of_tags_is_not_marked() -> None:
    full: dict[str, object] = {f"tag{number}": number for number in range(64)}
    header = pb.PutSamplesHeader(sample_ids=["a"], row_tags=packed(full))
    mark_rows(header)
    assert unpacked(header) == [full]


@pytest.mark.parametrize(
    "header",
    [
        pb.PutSamplesHeader(sample_ids=["a"], claim_id="c-1"),
        pb.PutSamplesHeader(sample_ids=["a"], generations=bytes(8)),
        pb.PutSamplesHeader(shared=True, reservation_id="r-1"),
    ],
    ids=["under a claim", "by generations", "shared by a group"],
)
def test_writes_to_existing_rows_leave_no_mark(header: pb.PutSamplesHeader) -> None:
    mark_rows(header)
    assert not header.row_tags


def test_the_rows_of_a_reserved_group_are_marked() -> None:
    header = pb.PutSamplesHeader(sample_ids=["a"], reservation_id="r-1")
    mark_rows(header)
    assert unpacked(header) == [{"traceparent": MARK}]


ROWS = packed({"traceparent": OTHER}, {}, {"traceparent": MARK}, {"traceparent": OTHER, "n": 1}, {"traceparent": 3})


@pytest.mark.parametrize(
    "response",
    [pb.ClaimSamplesResponse(row_tags=ROWS), pb.ClaimShardResponse(claim=pb.ClaimSamplesResponse(row_tags=ROWS))],
    ids=["claim", "shard"],
)
def test_a_claim_names_its_producers_and_the_rows_of_each(response: object) -> None:
    assert producers_in(response) == {OTHER: 2, MARK: 1}
    assert list(producers_in(response)) == [OTHER, MARK]


@pytest.mark.parametrize("response", [None, [], pb.PutSamplesResponse(), pb.GetPartitionResponse()])
def test_other_responses_name_no_producers(response: object) -> None:
    assert producers_in(response) == {}
