"""Appends: rows whose per-token values grow, while readers see what was there before or all of what is there after."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller, int64

from dataplane_server.core.calls.answers import Admitted, PutResult, Reservation, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import EndRead, PutSamples
from dataplane_server.core.calls.values import Copy, Run


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A caller of a data plane of 4 KiB with partition p: per-token fields a and b, field c."""
    one = new_caller(memory_bytes=4096)
    one.register(("a", "b", "c"), per_token_fields=frozenset("ab"))
    return one


def append(caller: Caller, *sample_ids: str, **lengths: list[int]) -> PutSamples:
    return caller.put_call(sample_ids, lengths, append=True)


def begin(caller: Caller, call: PutSamples) -> Reservation:
    begun = caller.apply(call)
    assert isinstance(begun, Reservation)
    return begun


def length_of(caller: Caller, sample_id: str) -> int:
    resident = caller.plane.sample("p", sample_id).resident
    assert resident is not None
    return resident.sequence_length


@pytest.fixture
def two(caller: Caller) -> Caller:
    """Rows s1 and s2 with 3 and 5 bytes in a, from offset 0."""
    caller.put(caller.put_call(["s1", "s2"], {"a": [3, 5]}))
    return caller


# -- what grows --------------------------------------------------------------------------------------------------------


def test_a_row_is_placed_anew_with_its_entries_before_the_new_ones(two: Caller) -> None:
    begun = begin(two, append(two, "s2", "s1", a=[1, 2]))
    assert begun == Reservation(2, (Run(8 + 5, 1), Run(8 + 6 + 3, 2)), 3, (Copy(3, 8, 5), Copy(0, 8 + 6, 3)))
    assert two.used == 8 + 11
    assert two.finish(begun.ticket) == PutResult(0, 3)
    assert two.used == 11
    plan = two.read(["s2", "s1"], "a")
    assert (list(plan.runs), plan.columns[0].entries.tolist()) == ([Run(8, 11)], [6, 5])
    assert plan.sequence_lengths.tolist() == [6, 5]


def test_a_dense_value_grows_into_a_jagged_one(caller: Caller) -> None:
    dense = ColumnSpec("a", Shape("dense", "uint8", (4, 2)))
    caller.put(caller.put_call(["s1"], columns=[dense], sequence_lengths=[4]))
    more = ColumnSpec("a", Shape("jagged", "uint8", (2,)), int64([3]))
    caller.put(caller.put_call(["s1"], columns=[more], append=True))
    (column,) = caller.read(["s1"], "a").columns
    assert (column.shape, column.entries.tolist()) == (Shape("jagged", "uint8", (2,)), [7])


def test_tags_come_with_an_append_and_the_story_tells_of_it(two: Caller) -> None:
    two.put(two.put_call(["s1"], {"a": [1]}, append=True, tags=[{"k": 1}], caller="me"))
    sample = two.plane.sample("p", "s1")
    assert sample.resident is not None
    assert sample.resident.tags == {"k": 1}
    assert [(event.what, event.who, event.fields) for event in sample.events] == [
        ("put", "", ("a",)),
        ("appended", "me", ("a",)),
    ]


# -- who may append ----------------------------------------------------------------------------------------------------


def test_rows_of_a_reserved_group_grow_under_its_name_only(caller: Caller) -> None:
    reservation_id = caller.reserve("g", ["s1"]).reservation_id
    for _ in range(3):
        caller.put(caller.put_call(["s1"], {"a": [2]}, reservation_id=reservation_id, append=True))
    with caller.refuses(Reason.ROW_RESERVED, "'s1'"):
        caller.apply(append(caller, "s1", a=[1]))
    caller.put(caller.add_call(reservation_id, ["s2"], {"a": [2]}, append=True))
    caller.finish_group(reservation_id)
    assert caller.take("a", batch_size=2).sequence_lengths.tolist() == [6, 2]


def test_a_claimed_row_grows_as_it_can_be_put(two: Caller) -> None:
    claim_id = two.take("a").claim_id
    two.put(append(two, "s1", a=[1]))
    two.put(two.put_call(["s1"], {"a": [1]}, claim_id=claim_id, append=True))
    assert length_of(two, "s1") == 5
    two.commit(claim_id)
    with two.refuses(Reason.CLAIM_NOT_FOUND, claim_id):
        two.apply(two.put_call(["s1"], {"a": [1]}, claim_id=claim_id, append=True))


def test_generations_name_the_rows_that_grow(two: Caller) -> None:
    old = two.put_rows(["s1"], "c").generations
    two.clear(["s1"])
    two.put_rows(["s1"], "a")
    with two.refuses(Reason.ROW_REPLACED, "'s1'"):
        two.apply(two.put_call(["s1"], {"a": [1]}, append=True, generations=old))


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "more", "reason", "words"),
    [
        pytest.param({}, {}, Reason.INVALID_REQUEST, ("at least one column",), id="nothing"),
        pytest.param(
            {"c": [1]}, {}, Reason.INVALID_REQUEST, ("'p'", "'c'", "per-token fields only"), id="not per-token"
        ),
        pytest.param({"x": [1]}, {}, Reason.FIELD_NOT_DECLARED, ("'x'",), id="not declared"),
        pytest.param(
            {},
            {"columns": [ColumnSpec("a", Shape("dense", "uint8", (1,)))]},
            Reason.INVALID_REQUEST,
            ("'a'", "its column is dense"),
            id="dense",
        ),
        pytest.param(
            {},
            {"columns": [ColumnSpec("a", Shape("jagged", "int16", ()), int64([1]))]},
            Reason.FIELD_MISMATCH,
            ("'a'", "int16"),
            id="another type",
        ),
        pytest.param(
            {"b": [1]},
            {},
            Reason.LENGTH_MISMATCH,
            ("'s1'", "field 'b' after the append has 1 tokens, field 'a' as stored has 3"),
            id="a field that the row lacks",
        ),
        pytest.param(
            {"a": [2]}, {"sequence_lengths": [2]}, Reason.LENGTH_MISMATCH, ("has 5 tokens", "has 2"), id="length"
        ),
        pytest.param({"a": [(1 << 31) - 2]}, {}, Reason.INVALID_REQUEST, ("row 0", "2147483649"), id="too long"),
        pytest.param({"a": [4091]}, {}, Reason.PUT_TOO_LARGE, ("append", "3.998 KiB", "beside the 3"), id="too large"),
    ],
)
def test_an_append_that_cannot_be_is_refused(
    two: Caller, lengths: dict[str, list[int]], more: dict[str, object], reason: Reason, words: tuple[str, ...]
) -> None:
    with two.refuses(reason, *words):
        two.apply(two.put_call(["s1"], lengths, append=True, **more))  # type: ignore[arg-type]


def test_an_append_does_not_declare_a_field_of_an_open_partition(caller: Caller) -> None:
    caller.register(("t",), partition_id="q", per_token_fields=frozenset("t"), open=True)
    with caller.refuses(Reason.INVALID_REQUEST, "'q'", "'new'", "is not declared"):
        caller.apply(caller.put_call(["s1"], {"t": [1], "new": [1]}, partition_id="q", append=True))


def test_a_shared_put_does_not_append(caller: Caller) -> None:
    reservation_id = caller.reserve("g", ["s1"]).reservation_id
    with caller.refuses(Reason.INVALID_REQUEST, "not shared"):
        caller.apply(caller.put_call([], {"a": [1]}, reservation_id=reservation_id, shared=True, append=True))


# -- rows that change meanwhile ----------------------------------------------------------------------------------------


def put_as_much(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], {"a": [3]}))


def clear(caller: Caller) -> None:
    caller.clear(["s1"])


def replace(caller: Caller) -> None:
    caller.clear(["s1"])
    put_as_much(caller)


def replace_by_an_empty_row(caller: Caller) -> None:
    caller.clear(["s1"])
    caller.put_rows(["s1"], "c")


def append_more(caller: Caller) -> None:
    caller.put(append(caller, "s1", a=[1]))


def put_an_empty_value(caller: Caller) -> None:
    caller.put(caller.put_call(["s1"], {"a": [0]}))


def commit_columns(caller: Caller) -> None:
    claim = caller.take("a")
    caller.finish(begin_commit(caller, claim.claim_id))


def begin_commit(caller: Caller, claim_id: str) -> int:
    begun = caller.apply(caller.commit_call(claim_id, {"a": [3]}))
    assert isinstance(begun, Reservation)
    return begun.ticket


@pytest.mark.parametrize(
    "change", [put_as_much, clear, replace, replace_by_an_empty_row, append_more, put_an_empty_value, commit_columns]
)
def test_a_row_whose_values_change_while_entries_arrive_is_not_appended_to(
    two: Caller, change: Callable[[Caller], None]
) -> None:
    begun = begin(two, append(two, "s2", "s1", a=[1, 1]))
    change(two)
    two.plane.take_effects()
    left = two.state()[0]
    with pytest.raises(Refusal, match="'s1'") as caught:
        two.finish(begun.ticket)
    assert caught.value.reason is Reason.APPEND_CONFLICT
    assert two.state()[0] == left
    assert two.used == two.plane.partition_info("p").size_bytes


def test_a_row_is_not_appended_to_though_another_value_has_the_place_of_the_old_one(caller: Caller) -> None:
    """The first put frees the place of the value, the second one takes it."""
    caller.put_rows(["s1"], "a", size=8)
    begun = begin(caller, append(caller, "s1", a=[1]))
    caller.put_rows(["s1"], "a", size=8)
    caller.put_rows(["s1"], "a", size=8)
    assert caller.read(["s1"], "a").runs == (Run(begun.copies[0].source, 8),)
    with pytest.raises(Refusal, match="'s1'"):
        caller.finish(begun.ticket)


# -- space and readers -------------------------------------------------------------------------------------------------


def test_a_reader_keeps_what_was_there_before(two: Caller) -> None:
    before = two.read(["s1"], "a")
    two.put(append(two, "s1", a=[2]))
    assert two.used == 8 + 5
    after = two.read(["s1"], "a")
    assert (list(before.runs), [run.size_bytes for run in after.runs]) == ([Run(0, 3)], [5])
    two.apply(EndRead(after.ticket))
    two.apply(EndRead(before.ticket))
    assert two.used == 10


def test_an_append_waits_for_space_for_old_and_new_entries(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=128)
    caller.register(("a",), per_token_fields=frozenset("a"))
    caller.put_rows(["s1"], "a", size=40)
    caller.put_rows(["s2"], "a", size=48)
    waiting = caller.apply(append(caller, "s1", a=[8]))
    assert isinstance(waiting, Waiting)
    caller.clear(["s2"])
    (admitted,) = caller.plane.take_effects()
    assert isinstance(admitted, Admitted)
    assert admitted.reservation.size_bytes == 8
    assert [copy.size_bytes for copy in admitted.reservation.copies] == [40]
    assert caller.used == 40 + 48
    caller.finish(waiting.ticket)
    assert caller.used == 48
