"""Digests that producers hash: kept with values, returned with reads, and demanded of whoever writes or reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.core.caller import Caller, int64

from dataplane_server.core.calls.answers import Stored
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import BeginRead, FinishWrite, StoreValues


def packed(*digests: int) -> bytes:
    return np.array(digests, "<i8").tobytes()


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A partition with digests and the per-token field a; row s1 has a value of 3 bytes whose digest is 11."""
    caller = new_caller()
    caller.register(("a", "b"), per_token_fields=frozenset("a"), digests=True)
    put(caller, {"a": [3]}, packed(11), "s1")
    return caller


def put(
    caller: Caller, lengths: dict[str, list[int]], digests: bytes, *sample_ids: str, checksums: bytes = b""
) -> None:
    reservation = caller.begin(caller.put_call(sample_ids, lengths, hashed=True))
    caller.apply(FinishWrite(reservation.ticket, checksums, value_digests=digests))


def read(caller: Caller, *sample_ids: str, fields: str = "a") -> list[list[int]]:
    """The digests, a list for each field."""
    digests = caller.apply(BeginRead("p", sample_ids, tuple(fields), checks_digests=True)).digests
    assert digests is not None
    found: list[list[int]] = digests.tolist()
    return found


def test_a_read_returns_what_producers_hashed_whoever_wrote_the_value_last(caller: Caller) -> None:
    put(caller, {"a": [1, 2], "b": [0, 4]}, packed(21, 22, 0, 42), "s2", "s3")
    claim = caller.take("a", "b", batch_size=2)
    reservation = caller.begin(replace(caller.commit_call(claim.claim_id, {"b": [1, 1]}), hashed=True))
    caller.apply(FinishWrite(reservation.ticket, value_digests=packed(51, 52)))
    values = StoreValues(caller.put_call(["s4"], {"a": [1], "b": [1]}, hashed=True), 2, b"", packed(-1, 62))
    assert isinstance(caller.apply(values), Stored)
    assert read(caller, "s4", "s1", "s3", "s2") == [[-1, 11, 22, 21]]
    assert read(caller, "s2", "s3", "s4", fields="ba") == [[51, 52, 62], [21, 22, -1]]


def test_rows_that_join_a_group_have_the_digest_of_what_it_shares(caller: Caller) -> None:
    reservation_id = caller.reserve("g", ["s2"]).reservation_id
    shared = caller.put_call([], {"b": [5]}, reservation_id=reservation_id, shared=True, hashed=True)
    added = caller.add_call(reservation_id, ["s3"], {"a": [1]}, hashed=True)
    for call in (StoreValues(shared, 5, b"", packed(71)), StoreValues(added, 1, b"", packed(72))):
        assert isinstance(caller.apply(call), Stored)
    caller.finish_group(reservation_id)
    assert read(caller, "s2", "s3", fields="b") == [[71, 71]]


def test_a_value_that_is_not_the_one_that_was_hashed_is_refused_by_name_where_the_log_hashes_it(caller: Caller) -> None:
    with caller.refuses(Reason.DIGEST_MISMATCH, "'p'", "'s3'", "'a'"):
        put(caller, {"a": [1, 2]}, packed(21, 22), "s2", "s3", checksums=packed(21, 23))
    with caller.refuses(Reason.SAMPLE_NOT_FOUND):
        read(caller, "s3")


def test_calls_without_digests_are_refused(caller: Caller) -> None:
    with caller.refuses(Reason.DIGESTS_REQUIRED, "'p'", "carries none"):
        caller.apply(caller.put_call(["s2"], {"a": [1]}))
    claim = caller.take("a")
    with caller.refuses(Reason.DIGESTS_REQUIRED, "'p'", "carries none"):
        caller.apply(caller.commit_call(claim.claim_id, {"b": [1]}))
    with caller.refuses(Reason.DIGESTS_REQUIRED, "'p'", "appended"):
        caller.apply(caller.put_call(["s1"], {"a": [1]}, append=True, hashed=True))
    with caller.refuses(Reason.DIGESTS_REQUIRED, "'p'", "compare"):
        caller.apply(BeginRead("p", ("s1",), ("a",)))
    with caller.refuses(Reason.DIGESTS_REQUIRED, "'p'", "range"):
        caller.apply(BeginRead("p", ("s1",), ("a",), None, int64([0]), int64([1]), checks_digests=True))
    caller.apply(caller.put_call(["s1"], tags=[{"x": 1}]))


def test_a_write_with_too_few_digests_is_refused(caller: Caller) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, "2 values", "8 bytes of digests"):
        put(caller, {"a": [1, 2]}, packed(21), "s2", "s3")


def test_a_definition_gains_and_loses_digests_only_while_rows_hold_no_values(caller: Caller) -> None:
    with caller.refuses(Reason.FIELD_HOLDS_VALUES, "'a'", "gives no digests"):
        caller.register(("a", "b"), per_token_fields=frozenset("a"))
    with caller.refuses(Reason.PARTITION_DIFFERS, "digests is True in the partition"):
        caller.register(("a", "b"), per_token_fields=frozenset("a"), replace=False)
    caller.clear(["s1"])
    caller.register(("a", "b"), per_token_fields=frozenset("a"))
    caller.put_rows(["s1"], "a")
    assert caller.read(["s1"], "a").digests is None
