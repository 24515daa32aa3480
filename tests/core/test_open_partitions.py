"""Open partitions: a call that names a field which is not declared declares it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import BYTES, Caller

from dataplane_server.core.calls.answers import Granted, Reservation, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal


@pytest.fixture
def opened(new_caller: Callable[..., Caller]) -> Caller:
    """Partition p with field a, which may have four fields."""
    caller = new_caller(memory_bytes=1 << 12, max_fields=4)
    caller.register(("a",), open=True)
    return caller


def fields(caller: Caller) -> list[str]:
    info = caller.plane.partition_info("p")
    assert [field.name for field in info.fields] == list(info.definition.fields)
    return list(info.definition.fields)


def put_to_a_group(caller: Caller, **more: object) -> None:
    reservation_id = caller.reserve("g", ["s2", "s3"]).reservation_id
    caller.put(caller.put_call(**more, reservation_id=reservation_id))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda c: c.put_rows(["s1"], "new", size=3), id="put"),
        pytest.param(
            lambda c: c.finish(c.apply(c.commit_call(c.take("a").claim_id, {"new": [3]})).ticket), id="commit"
        ),
        pytest.param(lambda c: c.write_back(c.take("a").claim_id, ["s1"], {"new": [3]}), id="write-back"),
        pytest.param(lambda c: put_to_a_group(c, sample_ids=["s2"], lengths={"new": [3]}), id="put to a group"),
        pytest.param(lambda c: put_to_a_group(c, sample_ids=(), lengths={"new": [3]}, shared=True), id="shared put"),
    ],
)
def test_a_write_declares_the_fields_that_it_names(opened: Caller, call: Callable[[Caller], object]) -> None:
    opened.put_rows(["s1"], "a")
    call(opened)
    assert fields(opened) == ["a", "new"]
    new = opened.plane.partition_info("p").fields[1]
    assert (new.shape, new.per_token, new.size_bytes) == (BYTES, False, 3)


def test_a_partition_may_be_opened_without_any_field(opened: Caller) -> None:
    opened.register((), partition_id="q", open=True)
    opened.put_rows(["s1"], partition_id="q")
    opened.put_rows(["s1", "s2"], "x", "y", partition_id="q")
    assert opened.clear(partition_id="q").cleared_rows == 2
    opened.register((), partition_id="r", open=True)
    opened.put_rows(["s1"], partition_id="r")
    assert opened.clear(partition_id="r").cleared_rows == 1


def test_a_field_is_declared_when_its_values_have_arrived_and_not_before(opened: Caller) -> None:
    first, second = (opened.apply(opened.put_call([name], {"new": [3]})) for name in ("s1", "s2"))
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    assert fields(opened) == ["a"]
    other = opened.apply(opened.put_call(["s3"], columns=[ColumnSpec("new", Shape("dense", "int8", ()))]))
    assert isinstance(other, Reservation)
    opened.finish(first.ticket)
    assert fields(opened) == ["a", "new"]
    opened.finish(second.ticket)
    with pytest.raises(Refusal, match="'new': the put has dense int8"):
        opened.finish(other.ticket)


def test_fields_up_to_the_limit_are_declared_and_more_are_refused(opened: Caller) -> None:
    opened.put_rows(["s1"], "x", "y")
    with opened.refuses(Reason.INVALID_REQUEST, "'p' has 3 fields and may have 4", "'u'"):
        opened.put_rows(["s1"], "u", "v")
    late = opened.apply(opened.put_call(["s1"], {"v": [1]}))
    assert isinstance(late, Reservation)
    opened.put_rows(["s1"], "u")
    with pytest.raises(Refusal, match="cannot be declared"):
        opened.finish(late.ticket)
    with opened.refuses(Reason.INVALID_REQUEST, "'v'"):
        opened.apply(opened.claim_call("v"))
    with opened.refuses(Reason.INVALID_REQUEST, "field name"):
        opened.apply(opened.claim_call(""))


def test_a_claim_may_require_a_field_before_its_first_put(opened: Caller) -> None:
    opened.put_rows(["s1", "s2"], "a")
    waiting = opened.apply(opened.claim_call("a", "new"))
    assert isinstance(waiting, Waiting)
    assert fields(opened) == ["a", "new"]
    opened.put_rows(["s2"], "new")
    (granted,) = opened.plane.take_effects()
    assert isinstance(granted, Granted)
    assert (granted.ticket, granted.grant.sample_ids) == (waiting.ticket, ("s2",))


def test_a_read_of_a_field_that_no_row_has_is_refused_as_one_of_a_row_that_lacks_it(opened: Caller) -> None:
    opened.put_rows(["s1"], "a")
    with opened.refuses(Reason.FIELD_NOT_PRODUCED, "'p'", "'new'", "no row"):
        opened.read(["s1"], "a", "new")


def test_per_token_fields_of_an_open_partition_have_one_length_and_others_any(opened: Caller) -> None:
    opened.register(("a",), partition_id="q", per_token_fields=frozenset("a"), open=True)
    opened.put(opened.put_call(["s1"], {"a": [3], "new": [5]}, partition_id="q"))
    with opened.refuses(Reason.LENGTH_MISMATCH, "'a' has 4", "sequence_lengths has 3"):
        call = opened.put_call(["s1"], {"newer": [5], "a": [4]}, sequence_lengths=[3], partition_id="q")
        opened.apply(call)
