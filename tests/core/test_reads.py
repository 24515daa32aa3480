"""Reads hold the bytes they name until they end; nobody waits for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller, int64
from tests.core.machine.arena import aligned, cut

from dataplane_server.core.calls.answers import ClearResult, ReadPlan
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead
from dataplane_server.core.calls.values import Run

B = aligned(12)
A = aligned(21)


@pytest.fixture
def three(caller: Caller) -> Caller:
    """Rows s1, s2, s3 with 3, 4, 5 bytes in a, from offset 0, and 1, 0, 2 bytes in b, from the next aligned offset."""
    caller.put(caller.put_call(["s1", "s2", "s3"], {"a": [3, 4, 5], "b": [1, 0, 2]}))
    return caller


def places(plan: ReadPlan, entry_bytes: int = 1) -> list[list[Run]]:
    """Pieces of each value, column after column."""
    return cut(plan.runs, [int(n) * entry_bytes for column in plan.columns for n in column.entries])


def test_a_read_names_the_bytes_of_each_row_in_the_order_asked(three: Caller) -> None:
    plan = three.read(["s3", "s1", "s2"], "b", "a")
    assert [column.name for column in plan.columns] == ["b", "a"]
    assert [column.entries.tolist() for column in plan.columns] == [[2, 1, 0], [5, 3, 4]]
    assert places(plan) == [[Run(B + 1, 2)], [Run(B, 1)], [], [Run(7, 5)], [Run(0, 3)], [Run(3, 4)]]
    assert plan.size_bytes == 15


def test_rows_that_lie_side_by_side_are_one_run(three: Caller) -> None:
    assert three.read(["s1", "s2", "s3"], "a", "b").runs == (Run(0, 12), Run(B, 3))


def test_bytes_of_cleared_rows_return_when_the_read_ends(three: Caller) -> None:
    plan = three.read(["s1", "s2"], "a")
    assert three.clear(["s1", "s2", "s3"]) == ClearResult(3, 15)
    assert three.used == 3 + 4 + 1
    three.apply(EndRead(plan.ticket))
    assert three.used == 0


def test_ending_a_read_twice_or_one_that_never_began_changes_nothing(three: Caller) -> None:
    kept, ended = three.read(["s1"], "a"), three.read(["s1"], "a")
    three.clear(["s1"])
    three.apply(EndRead(ended.ticket))
    three.apply(EndRead(ended.ticket))
    three.apply(EndRead(1 << 40))
    assert three.used == 15
    three.apply(EndRead(kept.ticket))
    assert three.used == 11


# -- of a range of tokens ----------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(new_caller: Callable[..., Caller]) -> Caller:
    """Rows s1, s2, s3 with 3, 4, 5 tokens in per-token field a of 2 bytes each, from offset 0, and 7 bytes in b
    each.
    """
    caller = new_caller(memory_bytes=4096)
    caller.register(("a", "b", "d"), per_token_fields=frozenset("ad"))
    column = ColumnSpec("a", Shape("jagged", "int16", ()), int64([3, 4, 5]))
    caller.put(caller.put_call(["s1", "s2", "s3"], {"b": [7, 7, 7]}, columns=[column]))
    return caller


@pytest.mark.parametrize(
    ("starts", "ends", "entries", "pieces"),
    [
        pytest.param([0], [9], [3, 4, 5], [Run(A, 6), Run(A + 6, 8), Run(A + 14, 10)], id="all"),
        pytest.param([1], [3], [2, 2, 2], [Run(A + 2, 4), Run(A + 8, 4), Run(A + 16, 4)], id="one range"),
        pytest.param([0, 2, 4], [1, 4, 5], [1, 2, 1], [Run(A, 2), Run(A + 10, 4), Run(A + 22, 2)], id="one a row"),
        pytest.param([4], [6], [0, 0, 1], [Run(A + 22, 2)], id="beyond some rows"),
        pytest.param([3, 0, 0], [3, 0, 0], [0, 0, 0], [], id="none"),
    ],
)
def test_a_range_of_tokens_is_cut_from_each_row(
    tokens: Caller, starts: list[int], ends: list[int], entries: list[int], pieces: list[Run]
) -> None:
    plan = tokens.read(["s1", "s2", "s3"], "a", tokens=(starts, ends))
    assert plan.columns[0].entries.tolist() == entries
    assert [piece for pieces in places(plan, 2) for piece in pieces] == pieces
    assert plan.size_bytes == 2 * sum(entries)
    assert plan.sequence_lengths.tolist() == [3, 4, 5]


def test_fields_that_are_not_per_token_are_read_whole_beside_a_range(tokens: Caller) -> None:
    plan = tokens.read(["s3", "s1"], "b", "a", tokens=([1], [2]))
    assert [column.entries.tolist() for column in plan.columns] == [[7, 7], [1, 1]]
    assert tokens.plane.partition_info("p").read_bytes_total == 14 + 4


def test_a_dense_per_token_field_is_cut_into_jagged_rows(tokens: Caller) -> None:
    dense = ColumnSpec("d", Shape("dense", "int16", (3, 2)))
    tokens.put(tokens.put_call(["s1"], columns=[dense]))
    (column,) = tokens.read(["s1"], "d", tokens=([1], [9])).columns
    assert (column.shape, column.entries.tolist()) == (Shape("jagged", "int16", (2,)), [2])


@pytest.mark.parametrize(
    ("starts", "ends", "reason", "words"),
    [
        ([0], [1, 1, 1], Reason.ROW_COUNT_MISMATCH, ("3 rows", "got 1 and 3")),
        ([0, 0], [1, 1], Reason.ROW_COUNT_MISMATCH, ("3 rows", "got 2 and 2")),
        ([-1], [1], Reason.INVALID_REQUEST, ("-1 to 1 of all rows", "0 <= start <= end")),
        ([0, 2, 0], [1, 1, 1], Reason.INVALID_REQUEST, ("2 to 1 of sample 's2'",)),
    ],
)
def test_a_range_that_is_none_is_refused(
    tokens: Caller, starts: list[int], ends: list[int], reason: Reason, words: tuple[str, ...]
) -> None:
    with tokens.refuses(reason, *words):
        tokens.read(["s1", "s2", "s3"], "a", tokens=(starts, ends))


def test_a_read_of_values_in_too_many_pieces_is_refused_at_once(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=4096, max_read_pieces=4)
    caller.register()
    ids = ["s1", "s2", "s3"]
    caller.put(caller.put_call(ids, {"a": [3, 4, 5], "b": [1, 2, 2]}))
    assert len(caller.read(ids, "a", "b").runs) == 2
    with caller.refuses(Reason.LIMIT_REACHED, "3 rows and 2 fields lie in 6 pieces", "max_read_pieces", "fewer rows"):
        caller.read(ids[::-1], "a", "b")
    assert len(caller.read(ids[::-1], "a").runs) == 3
