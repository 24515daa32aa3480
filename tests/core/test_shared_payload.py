"""Values that all rows of a group share: stored once, read as if they stood in every row, gone with the last one."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import PutResult
from dataplane_server.core.calls.requests import EndRead

IDS = ["s1", "s2", "s3"]


def size_of(caller: Caller, field: str) -> tuple[int, int]:
    """Rows that hold a field, and bytes of their values."""
    info = next(info for info in caller.plane.partition_info("p").fields if info.name == field)
    return info.rows, info.size_bytes


@pytest.fixture
def group(caller: Caller) -> str:
    """Reservation of group g: rows s1 to s3 with one, two, three bytes of their own in b, 100 that they share in a."""
    reservation_id = caller.reserve("g", IDS).reservation_id
    assert caller.share(reservation_id, a=100) == PutResult(0, 100)
    caller.put(caller.put_call(IDS, {"b": [1, 2, 3]}, reservation_id=reservation_id))
    return reservation_id


def test_a_shared_value_is_counted_once(caller: Caller, group: str) -> None:
    assert (caller.used, caller.plane.partition_info("p").size_bytes) == (106, 106)
    assert (size_of(caller, "a"), size_of(caller, "b")) == ((3, 100), (3, 6))


def test_the_last_of_several_readers_of_different_rows_frees_the_bytes(caller: Caller, group: str) -> None:
    caller.finish_group(group)
    plans = [caller.read([sample_id], "a") for sample_id in ("s1", "s2", "s2", "s3")]
    caller.clear()
    for plan in plans[:-1]:
        caller.apply(EndRead(plan.ticket))
        assert caller.used >= 100
    caller.apply(EndRead(plans[-1].ticket))
    assert caller.used == 0
