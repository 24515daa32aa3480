"""A partition that is registered again: what agrees changes nothing, what is more is added, what contradicts is
refused.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Granted, Registered
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead, RegisterPartition
from dataplane_server.core.calls.values import Definition

P = Definition(
    "p", ("a", "b"), ("train", "score"), 4, frozenset("a"), 2, {"b": ("no", "yes")}, 3, dtypes={"b": "uint8"}
)


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
        dtypes={"d": "int16"},
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
        dtypes={"b": "uint8", "d": "int16"},
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
    streams = caller.begin(caller.put_call(["s3"], {"b": [20]}))
    waits_for_space = caller.wait(caller.put_call(["s2"], {"b": [500]}))
    waits_for_rows = caller.wait(caller.claim_call("b"))
    reservation_id = caller.reserve("g", ["s4"]).reservation_id
    caller.extend(fields=tuple(f"f{i}" for i in range(62)), tasks=("late",))
    assert caller.plane.take_effects() == []
    caller.finish(streams.ticket)
    granted = caller.effect(Granted)
    assert (granted.ticket, granted.grant.sample_ids) == (waits_for_rows, ("s3",))
    assert caller.commit(claim_id).consumed_rows == 1
    caller.clear(["s1"])
    assert caller.plane.take_effects() == []  # the read pins its bytes
    caller.apply(EndRead(reading.ticket))
    (admitted,) = caller.plane.take_effects()
    assert admitted.ticket == waits_for_space
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


# -- what contradicts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        pytest.param(but(per_token_fields=frozenset()), ("'a' is per-token",), id="per-token no longer"),
        pytest.param(but(per_token_fields=frozenset("ab")), ("'b' is per-token",), id="per-token now"),
        pytest.param(but(enums={"b": ("no", "maybe")}), ("'b'", "(no, yes)", "(no, maybe)"), id="enum"),
        pytest.param(but(max_deliveries=0), ("max_deliveries is 3",), id="deliveries"),
        pytest.param(
            Definition("p", ("a", "b"), ("train",), 0, frozenset(), 8, {"b": ()}, 0, True, True, {"b": "int8"}, True),
            ("'a'", "uint8", "no, yes", "max_deliveries", "size is 2", "open is", "clear_when_consumed", "digests"),
            id="everything",
        ),
    ],
)
def test_a_registration_that_contradicts_is_refused_unless_it_replaces(
    busy: Caller, definition: Definition, words: tuple[str, ...]
) -> None:
    with busy.refuses(Reason.PARTITION_DIFFERS, "'p'", "replace=True", *words):
        register(busy, definition)
    busy.clear()
    assert register(busy, definition, replace=True).partition.definition == definition
