"""Pages of partitions: together they hold each partition once, and each costs little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import DropPartition, RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.service import translate
from rl_dataplane.v1 import data_plane_pb2 as pb


def plane_with(partitions: int, tasks: int, enum_names: int = 0) -> DataPlane:
    plane = DataPlane(Limits(memory_bytes=1 << 20))
    enums = {"a": tuple(f"{number:0250}" for number in range(enum_names))}
    for number in reversed(range(partitions)):
        definition = Definition(f"p{number:03}", ("a",), tuple(f"t{task}" for task in range(tasks)), enums=enums)
        plane.apply(RegisterPartition(f"r{number}", definition), 0.0)
    return plane


def pages(plane: DataPlane, page_size: int, seen: Iterable[str] | None = None) -> Iterator[pb.ListPartitionsResponse]:
    request = pb.ListPartitionsRequest(page_size=page_size)
    while True:
        page = translate.listings.partitions(plane, plane.partitions if seen is None else seen, request, 1.0)
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return


@pytest.mark.parametrize(
    ("partitions", "tasks", "enum_names", "page_size", "sizes"),
    [
        (7, 1, 0, 3, [3, 3, 1]),
        (6, 1, 0, 3, [3, 3]),
        (6, 1, 0, 100, [6]),
        (0, 1, 0, 3, [0]),
        (9, 64, 0, 100, [4, 4, 1]),  # a page ends early where tasks are many,
        (5, 1, 4096, 100, [2, 2, 1]),  # or large
    ],
)
def test_pages_hold_each_partition_once_in_order(
    partitions: int, tasks: int, enum_names: int, page_size: int, sizes: list[int]
) -> None:
    plane = plane_with(partitions, tasks, enum_names=enum_names)
    listed = [[partition.partition_id for partition in page.partitions] for page in pages(plane, page_size)]
    assert [len(page) for page in listed] == sizes
    assert [name for page in listed for name in page] == sorted(plane.partitions)


def test_the_next_page_begins_behind_a_partition_that_is_gone() -> None:
    plane = plane_with(5, 1)
    turning = pages(plane, 2)
    assert [partition.partition_id for partition in next(turning).partitions] == ["p000", "p001"]
    plane.apply(DropPartition("drop", "p001"), 0.0)
    assert [partition.partition_id for page in turning for partition in page.partitions] == ["p002", "p003", "p004"]


@pytest.mark.parametrize(("partitions", "tasks", "enum_names"), [(150, 64, 0), (25, 1, 4096)])
def test_too_many_partitions_for_one_answer_are_refused_with_what_to_do(
    partitions: int, tasks: int, enum_names: int
) -> None:
    with pytest.raises(Refusal, match=f"{partitions} .*page_size") as refused:
        next(pages(plane_with(partitions, tasks, enum_names=enum_names), 0))
    assert refused.value.reason is Reason.LIMIT_REACHED
