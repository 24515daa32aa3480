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


Put = tuple[dict[str, list[int]], list[int] | None]


@pytest.mark.parametrize(
    ("puts", "expected"),
    [
        pytest.param([({"tokens": [3, 0]}, None)], [3, 0], id="a per-token field tells it"),
        pytest.param([({"note": [9, 9]}, [3, -1])], [3, -1], id="given where no per-token field tells it"),
        pytest.param([({}, [3]), ({"note": [1]}, [-1]), ({"note": [1]}, None)], [3], id="unknown leaves a known one"),
        pytest.param([({}, [3]), ({}, [5])], [5], id="given anew"),
        pytest.param([({}, [3]), ({"tokens": [5]}, None)], [5], id="a first per-token field overrules a given one"),
        pytest.param([({"tokens": [3], "mask": [3]}, None), ({"tokens": [5], "mask": [5]}, None)], [5], id="all anew"),
        pytest.param([({"tokens": [3]}, None), ({"tokens": [5]}, [5])], [5], id="the only one replaced"),
        pytest.param([({"tokens": [3], "note": [40]}, None)], [3], id="other fields have any length"),
    ],
)
def test_the_length_of_a_row_is_what_its_puts_say(caller: Caller, puts: list[Put], expected: list[int]) -> None:
    for fields, given in puts:
        caller.put(caller.put_call(["s1", "s2"][: len(expected)], fields, sequence_lengths=given))
    assert lengths(caller) == expected


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
        (None, ("'s1'", "7 tokens for every row", "nothing says")),
        ([7, -1], ("'s2'", "7 tokens for every row", "nothing says")),
        ([7, 3], ("'s2'", "'tokens' has 7", "sequence_lengths has 3")),
    ],
    ids=str,
)
def test_a_dense_per_token_field_that_may_be_padded_is_refused(
    caller: Caller, given: list[int] | None, words: tuple[str, ...]
) -> None:
    with caller.refuses(Reason.LENGTH_MISMATCH, "'p'", "'tokens'", *words):
        caller.put(caller.put_call(["s1", "s2"], columns=[DENSE], sequence_lengths=given))


def test_a_length_given_before_does_not_vouch_for_a_dense_per_token_field(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], sequence_lengths=[7]))
    with caller.refuses(Reason.LENGTH_MISMATCH, "nothing says"):
        caller.put(caller.put_call(["s1"], columns=[DENSE]))


def test_a_per_token_field_without_a_token_dimension_is_refused(caller: Caller) -> None:
    with caller.refuses(Reason.FIELD_MISMATCH, "'p'", "'tokens'", "one value a row", "(tokens, ...)"):
        caller.put(caller.put_call(["s1"], columns=[ColumnSpec("tokens", Shape("dense", "int32", ()))]))


@pytest.mark.parametrize(
    ("before", "put", "given", "words"),
    [
        pytest.param({}, {"tokens": [3, 4], "mask": [3, 5]}, None, ("'tokens' has 4", "'mask' has 5"), id="in one put"),
        pytest.param({}, {"tokens": [3, 4]}, [3, 5], ("'tokens' has 4", "sequence_lengths has 5"), id="with the given"),
        pytest.param({"mask": [3, 5]}, {"tokens": [3, 4]}, None, ("has 4", "'mask' as stored has 5"), id="with stored"),
        pytest.param({"mask": [3, 5]}, {}, [-1, 4], ("sequence_lengths has 4", "'mask' as stored has 5"), id="given"),
        pytest.param({"tokens": [3, 5]}, {"tokens": [9, 4]}, [9, 3], ("'tokens' has 4", "has 3"), id="while replaced"),
    ],
)
def test_lengths_that_disagree_are_refused_by_sample_and_both_sources(
    caller: Caller,
    before: dict[str, list[int]],
    put: dict[str, list[int]],
    given: list[int] | None,
    words: tuple[str, ...],
) -> None:
    caller.put(caller.put_call(["s1", "s2"], before))
    with caller.refuses(Reason.LENGTH_MISMATCH, "'p'", "'s2'", *words):
        caller.put(caller.put_call(["s1", "s2"], put, sequence_lengths=given))


def test_a_commit_must_agree_with_the_lengths_of_its_rows(caller: Caller) -> None:
    caller.put(caller.put_call(["s1", "s2"], {"tokens": [3, 4]}))
    claim_id = caller.take("tokens", batch_size=2).claim_id
    with caller.refuses(Reason.LENGTH_MISMATCH, "'s2'", "'mask' has 5"):
        caller.apply(caller.commit_call(claim_id, {"mask": [3, 5]}))


def test_a_field_may_stop_being_per_token_and_then_have_any_length(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], {"tokens": [3], "mask": [3]}))
    caller.register(("tokens", "mask", "note"), per_token_fields=frozenset({"tokens"}))
    caller.put(caller.put_call(["s1"], {"mask": [9]}))
    assert lengths(caller) == [3]


def test_a_field_no_row_holds_may_become_per_token(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], {"tokens": [3]}))
    caller.register(("tokens", "mask", "note"), per_token_fields=frozenset({"tokens", "note"}))
    with caller.refuses(Reason.LENGTH_MISMATCH, "'note' has 4"):
        caller.put(caller.put_call(["s1"], {"note": [4]}))
    caller.put(caller.put_call(["s1"], {"note": [3]}))
