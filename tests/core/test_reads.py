"""Reads hold the bytes they name until they end; nobody waits for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller
from tests.core.machine.arena import aligned

from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead
from dataplane_server.core.calls.values import Run


@pytest.fixture
def three(caller: Caller) -> Caller:
    """Rows s1, s2, s3 with 3, 4, 5 bytes in a, from offset 0, and 1, 0, 2 bytes in b, from the next aligned offset."""
    caller.register(per_token_fields=frozenset("a"))
    caller.put(caller.put_call(["s1", "s2", "s3"], {"a": [3, 4, 5], "b": [1, 0, 2]}))
    return caller


def test_rows_that_lie_side_by_side_are_one_run(three: Caller) -> None:
    assert three.read(["s1", "s2", "s3"], "a", "b").runs == (Run(0, 12), Run(aligned(12), 3))


def test_ending_a_read_twice_or_one_that_never_began_changes_nothing(three: Caller) -> None:
    kept, ended = three.read(["s1"], "a"), three.read(["s1"], "a")
    three.clear(["s1"])
    three.apply(EndRead(ended.ticket))
    three.apply(EndRead(ended.ticket))
    three.apply(EndRead(1 << 40))
    assert three.used == 15
    three.apply(EndRead(kept.ticket))
    assert three.used == 11


@pytest.mark.parametrize("once", [False, True], ids=["a value", "a value that is put once"])
def test_what_a_row_gives_up_is_free_when_those_who_read_it_before_have_ended(caller: Caller, once: bool) -> None:
    """Else a row that is replaced again and again, and always read by somebody, would fill the memory."""
    caller.register()

    def put(letter: bytes) -> None:
        if once:
            caller.put_once({"s1": letter * 8})
        else:
            caller.put_rows(["s1"], "a", size=8)

    put(b"0")
    last = caller.read(["s1"], "a")
    for letter in (b"1", b"2", b"3"):
        put(letter)
        assert caller.used == 16
        caller.apply(EndRead(caller.read(["s1"], "a").ticket))
        assert caller.used == 16
        reading = caller.read(["s1"], "a")
        caller.apply(EndRead(last.ticket))
        assert caller.used == 8
        last = reading
    caller.clear(["s1"])
    assert caller.used == 8
    caller.apply(EndRead(last.ticket))
    assert caller.used == 0


@pytest.mark.parametrize(
    ("starts", "ends", "reason", "words"),
    [
        ([0], [1, 1, 1], Reason.ROW_COUNT_MISMATCH, ("3 rows", "1 and 3")),
        ([0, 0], [1, 1], Reason.ROW_COUNT_MISMATCH, ("3 rows", "2 and 2")),
        ([-1], [1], Reason.INVALID_REQUEST, ("-1 to 1",)),
        ([0, 2, 0], [1, 1, 1], Reason.INVALID_REQUEST, ("2 to 1", "'s2'")),
    ],
)
def test_a_range_that_is_none_is_refused(
    three: Caller, starts: list[int], ends: list[int], reason: Reason, words: tuple[str, ...]
) -> None:
    with three.refuses(reason, *words):
        three.read(["s1", "s2", "s3"], "a", tokens=(starts, ends))


def test_a_read_of_values_in_too_many_pieces_is_refused_at_once(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=4096, max_read_pieces=4)
    caller.register()
    ids = ["s1", "s2", "s3"]
    caller.put(caller.put_call(ids, {"a": [3, 4, 5], "b": [1, 2, 2]}))
    assert len(caller.read(ids, "a", "b").runs) == 2
    with caller.refuses(Reason.LIMIT_REACHED, "3 rows", "2 fields", "6 pieces", "max_read_pieces"):
        caller.read(ids[::-1], "a", "b")
    assert len(caller.read(ids[::-1], "a").runs) == 3
