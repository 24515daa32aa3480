"""One length a row: what a row's per-token fields and its given length have to agree on, and who may change it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane with partition p: tokens and mask have one entry a token, note has not."""
    one: Caller = new_caller()
    one.register(("tokens", "mask", "note"), per_token_fields=frozenset({"tokens", "mask"}))
    return one


def lengths(caller: Caller) -> list[int]:
    ids = ["s1", "s2"][: caller.plane.partition_info("p").rows]
    caller.put_rows(ids, "note")
    plan = caller.read(ids, "note")
    caller.apply(EndRead(plan.ticket))
    return [int(length) for length in plan.sequence_lengths]


DENSE = ColumnSpec("tokens", Shape("dense", "int32", (7, 2)))


@pytest.mark.parametrize(
    ("before", "mask", "given"), [([], [], [7, 7]), ([], [7, 7], None), ([7, 7], [], None), ([7], [], [-1, 7])], ids=str
)
def test_a_dense_per_token_field_is_put_where_something_else_says_the_same_length(
    caller: Caller, before: list[int], mask: list[int], given: list[int] | None
) -> None:
    caller.put(caller.put_call(["s1", "s2"][: len(before)], {"mask": before})) if before else None
    columns = [DENSE, *caller.put_call(["s1", "s2"], {"mask": mask} if mask else {}).columns]
    caller.put(caller.put_call(["s1", "s2"], columns=columns, sequence_lengths=given))
    assert lengths(caller) == [7, 7]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, ("'s1'", "7 tokens")),
        ([7, -1], ("'s2'", "7 tokens")),
        ([7, 3], ("'s2'", "has 7", "sequence_lengths has 3")),
    ],
    ids=str,
)
def test_a_dense_per_token_field_that_may_be_padded_is_refused(
    caller: Caller, given: list[int] | None, words: tuple[str, ...]
) -> None:
    with caller.refuses(Reason.LENGTH_MISMATCH, "'p'", "'tokens'", *words):
        caller.put(caller.put_call(["s1", "s2"], columns=[DENSE], sequence_lengths=given))
