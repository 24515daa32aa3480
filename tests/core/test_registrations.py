"""A partition that is registered again: what agrees changes nothing, what is more is added, what contradicts is
refused.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Granted, Registered, Reservation, Waiting
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead, RegisterPartition
from dataplane_server.core.calls.values import Definition

P = Definition("p", ("a", "b"), ("train", "score"), 4, frozenset("a"), 2, {"b": ("no", "yes")}, 3)


def register(caller: Caller, definition: Definition, *, replace: bool = False) -> Registered:
    return caller.apply(RegisterPartition(caller.request_id(), definition, replace))


def but(**changed: object) -> Definition:
    """The definition of p with some things changed."""
    return Definition(**{name: getattr(P, name) for name in P.__slots__} | changed)


@pytest.fixture
def busy(new_caller: Callable[..., Caller]) -> Caller:
    """Rows s1 (consumed by train), s2 (claimed by it) and s3 of p, which is defined as P."""
    caller = new_caller(memory_bytes=1 << 16)
    register(caller, P)
    caller.put_rows(["s1", "s2", "s3"], "a", "b", size=3)
    caller.commit(caller.take("a").claim_id)
    caller.take("a")
    return caller


# -- nothing new -------------------------------------------------------------------------------------------------------


def test_what_a_registration_did_is_told(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    assert register(caller, P).outcome == "created"
    assert register(caller, P).outcome == "unchanged"
    assert register(caller, but(num_samples=9)).outcome == "extended"
    assert register(caller, P, replace=True).outcome == "replaced"


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(P, id="the same"),
        pytest.param(but(fields=("b",), per_token_fields=frozenset(), enums={}), id="fewer fields"),
        pytest.param(but(fields=("b", "a")), id="in another order"),
        pytest.param(but(tasks=()), id="no task"),
        pytest.param(but(num_samples=1), id="fewer rows announced"),
        pytest.param(but(grpo_group_size=None), id="no group size"),
    ],
)
def test_a_registration_that_declares_nothing_new_changes_nothing(busy: Caller, definition: Definition) -> None:
    before = busy.state()
    assert register(busy, definition).outcome == "unchanged"
    assert busy.state() == before
    assert busy.task().consumed_rows == 1


# -- more --------------------------------------------------------------------------------------------------------------


def test_what_is_declared_beyond_the_definition_is_added_and_cursors_and_claims_stay(busy: Caller) -> None:
    more = but(
        fields=("c", "a", "d"),
        tasks=("judge", "train"),
        num_samples=9,
        per_token_fields=frozenset("ad"),
        enums={"c": ("low", "high")},
        grpo_group_size=None,
    )
    answer = register(busy, more)
    assert answer.outcome == "extended"
    assert answer.partition == busy.plane.partition_info("p")
    assert answer.partition.definition == but(
        fields=("a", "b", "c", "d"),
        tasks=("train", "score", "judge"),
        num_samples=9,
        per_token_fields=frozenset("ad"),
        enums={"b": ("no", "yes"), "c": ("low", "high")},
    )
    train = busy.task()
    assert (train.untaken_rows, train.claimed_rows, train.consumed_rows) == (1, 1, 1)
    assert busy.take("a", "b", batch_size=3, min_size=1).sample_ids == ("s3",)
    assert busy.take("a", task="judge", batch_size=3).sample_ids == ("s1", "s2", "s3")


def test_all_that_is_under_way_goes_on_while_a_partition_is_extended(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=1024)
    caller.register()
    caller.put_rows(["s1"], "a", size=600)
    caller.put_rows(["s2"], "a", size=50)
    reading = caller.read(["s1"], "a")
    claim_id = caller.take("a").claim_id
    streams = caller.apply(caller.put_call(["s3"], {"b": [20]}))
    waits_for_space = caller.apply(caller.put_call(["s2"], {"b": [500]}))
    waits_for_rows = caller.apply(caller.claim_call("b"))
    reservation_id = caller.reserve("g", ["s4"]).reservation_id
    assert isinstance(streams, Reservation)
    assert isinstance(waits_for_space, Waiting)
    assert isinstance(waits_for_rows, Waiting)
    caller.extend(fields=tuple(f"f{i}" for i in range(62)), tasks=("late",))
    assert caller.plane.take_effects() == []
    caller.finish(streams.ticket)
    (granted,) = caller.plane.take_effects()
    assert isinstance(granted, Granted)
    assert (granted.ticket, granted.grant.sample_ids) == (waits_for_rows.ticket, ("s3",))
    assert caller.commit(claim_id).consumed_rows == 1
    caller.clear(["s1"])
    assert caller.plane.take_effects() == []  # the read pins its bytes
    caller.apply(EndRead(reading.ticket))
    (admitted,) = caller.plane.take_effects()
    assert admitted.ticket == waits_for_space.ticket
    caller.finish(admitted.ticket)
    caller.put(caller.put_call(["s4"], {"f61": [9]}, reservation_id=reservation_id))
    caller.finish_group(reservation_id)
    assert caller.take("f61", task="late").sample_ids == ("s4",)
    assert caller.take(task="late", batch_size=4, min_size=1).sample_ids == ("s2", "s3")


def test_a_new_task_gets_every_row_but_those_that_are_reserved(busy: Caller) -> None:
    busy.reserve("g", ["s4"])
    register(busy, but(tasks=("judge",)))
    assert busy.task("judge").untaken_rows == 4
    assert busy.take(task="judge", batch_size=4, min_size=1).sample_ids == ("s1", "s2", "s3")


def test_extending_does_as_a_registration_that_declares_more(busy: Caller) -> None:
    info = busy.extend(fields=("c", "a"), per_token_fields=frozenset("ca"), tasks=("judge",), num_samples=3)
    assert info == busy.plane.partition_info("p")
    assert info.definition == but(
        fields=("a", "b", "c"), tasks=("train", "score", "judge"), per_token_fields=frozenset("ac")
    )
    assert busy.extend(num_samples=9).definition.num_samples == 9
    assert busy.task().consumed_rows == 1


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        pytest.param({"fields": ("a",)}, Reason.PARTITION_DIFFERS, ("'p'", "'a'", "per-token"), id="not per-token"),
        pytest.param({"fields": ("c", "c")}, Reason.DUPLICATE, ("'c'",), id="field twice"),
        pytest.param({"tasks": ("judge", "judge")}, Reason.DUPLICATE, ("'judge'",), id="task twice"),
        pytest.param({"fields": ("",)}, Reason.INVALID_REQUEST, ("field name", "1 to"), id="malformed"),
        pytest.param({"per_token_fields": frozenset("c")}, Reason.FIELD_NOT_DECLARED, ("'p'", "'c'"), id="undeclared"),
        pytest.param(
            {"fields": tuple(f"f{i}" for i in range(63))}, Reason.INVALID_REQUEST, ("64 fields", "65"), id="too many"
        ),
    ],
)
def test_what_cannot_be_added_is_refused(
    busy: Caller, more: dict[str, object], reason: Reason, words: tuple[str, ...]
) -> None:
    with busy.refuses(reason, *words):
        busy.extend(**more)


# -- what contradicts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        pytest.param(
            but(per_token_fields=frozenset()),
            "field 'a' is per-token in the partition, not in the registration",
            id="per-token no longer",
        ),
        pytest.param(
            but(per_token_fields=frozenset("ab")),
            "field 'b' is per-token in the registration, not in the partition",
            id="per-token now",
        ),
        pytest.param(
            but(enums={"b": ("no", "maybe")}),
            "the enum of field 'b' is (no, yes) in the partition, (no, maybe) in the registration",
            id="enum",
        ),
        pytest.param(
            but(max_deliveries=0), "max_deliveries is 3 in the partition, 0 in the registration", id="deliveries"
        ),
        pytest.param(
            but(grpo_group_size=8), "grpo_group_size is 2 in the partition, 8 in the registration", id="group size"
        ),
        pytest.param(but(open=True), "open is False in the partition, True in the registration", id="open"),
        pytest.param(but(clear_when_consumed=True), "clear_when_consumed is False in the partition", id="clears"),
    ],
)
def test_a_registration_that_contradicts_is_refused_unless_it_replaces(
    busy: Caller, definition: Definition, words: str
) -> None:
    with busy.refuses(Reason.PARTITION_DIFFERS, "'p'", words, "pass replace=True", "resets all tasks"):
        register(busy, definition)
    busy.clear()
    assert register(busy, definition, replace=True).partition.definition == definition


def test_all_differences_are_told_at_once(busy: Caller) -> None:
    every = (
        "'a' is per-token",
        "enum of field 'b'",
        "max_deliveries",
        "grpo_group_size",
        "open",
        "clear_when_consumed",
    )
    other = Definition("p", ("a", "b"), ("train",), 0, frozenset(), 8, {"b": ()}, 0, True, True)
    with busy.refuses(Reason.PARTITION_DIFFERS, *every):
        register(busy, other)


def test_very_many_differences_do_not_hide_what_would_be_right(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    fields = tuple(f"{i}{'x' * 200}" for i in range(Limits().max_fields))
    register(caller, Definition("p", fields, ("train",)))
    with caller.refuses(Reason.PARTITION_DIFFERS, "pass replace=True"):
        register(caller, Definition("p", fields, ("train",), per_token_fields=frozenset(fields)))


def test_a_registration_cannot_exceed_the_limits_together_with_what_is_there(busy: Caller) -> None:
    with busy.refuses(Reason.INVALID_REQUEST, "'p'", "64 fields"):
        register(busy, but(fields=tuple(f"f{i}" for i in range(63)), per_token_fields=frozenset(), enums={}))
