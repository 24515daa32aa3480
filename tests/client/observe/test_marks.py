"""The tag that names the trace in which a row was put."""

from __future__ import annotations

import msgpack
import pytest

from dataplane_client import observe
from rl_dataplane.v1 import data_plane_pb2 as pb

MARK, OTHER = (f"00-{'ab' * 16}-{digit * 16}-01" for digit in "12")


def mark_rows(header: pb.PutSamplesHeader) -> None:
    observe.Call("PutSamples", "127.0.0.1:1", header).mark_rows(MARK)


def producers_in(response: object) -> dict[str, int]:
    call = observe.Call("ClaimSamples", "127.0.0.1:1", None)
    call.response = response
    return call.producers


def packed(*rows: dict[str, object]) -> list[bytes]:
    return [msgpack.packb(row) if row else b"" for row in rows]


def unpacked(header: pb.PutSamplesHeader) -> list[dict[str, object]]:
    return [msgpack.unpackb(tags) for tags in header.row_tags]


MARKED: dict[str, object] = {"traceparent": MARK}
OWN: list[dict[str, object]] = [{"traceparent": OTHER}, {"traceparent": None}]
FULL: dict[str, object] = {f"tag{number}": number for number in range(64)}
ROWS_PUT: dict[str, tuple[list[dict[str, object]], list[dict[str, object]]]] = {
    "no tags": ([], [MARKED] * 2),
    "tags": ([{"v": 1}, {}, {"v": 2, "n": "x"}], [{"v": 1, **MARKED}, MARKED, {"v": 2, "n": "x", **MARKED}]),
    "the caller's own": (OWN, OWN),
    "the greatest number of tags": ([FULL], [FULL]),
}


@pytest.mark.parametrize("reservation", ["", "r-1"], ids=["plain", "of a group"])
@pytest.mark.parametrize(("tags", "marked"), ROWS_PUT.values(), ids=ROWS_PUT)
def test_rows_are_marked_and_keep_their_tags(
    tags: list[dict[str, object]], marked: list[dict[str, object]], reservation: str
) -> None:
    ids = [f"s{row}" for row in range(len(marked))]
    header = pb.PutSamplesHeader(sample_ids=ids, row_tags=packed(*tags), reservation_id=reservation)
    mark_rows(header)
    assert unpacked(header) == marked


@pytest.mark.parametrize(
    "header",
    [
        pb.PutSamplesHeader(sample_ids=["a"], claim_id="c-1"),
        pb.PutSamplesHeader(sample_ids=["a"], generations=bytes(8)),
        pb.PutSamplesHeader(sample_ids=["a"], only_if=pb.Filter(terms=[pb.FilterTerm(tag="state")])),
        pb.PutSamplesHeader(shared=True, reservation_id="r-1"),
    ],
    ids=["under a claim", "by generations", "under a condition", "shared by a group"],
)
def test_writes_to_existing_rows_leave_no_mark(header: pb.PutSamplesHeader) -> None:
    mark_rows(header)
    assert not header.row_tags


ROWS = packed({"traceparent": OTHER}, {}, {"traceparent": MARK}, {"traceparent": OTHER, "n": 1}, {"traceparent": 3})


@pytest.mark.parametrize(
    "response",
    [pb.ClaimSamplesResponse(row_tags=ROWS), pb.ClaimShardResponse(claim=pb.ClaimSamplesResponse(row_tags=ROWS))],
    ids=["claim", "shard"],
)
def test_a_claim_names_its_producers_and_the_rows_of_each(response: object) -> None:
    assert producers_in(response) == {OTHER: 2, MARK: 1}
    assert list(producers_in(response)) == [OTHER, MARK]
