"""Calls that are repeated with the same request_id: applied once, answered as the first time, for a while."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.caller import BYTES, Caller, int64

from dataplane_server.core.calls.answers import Granted, PutResult, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    ClaimSamples,
    ClearSamples,
    ClosePartition,
    CommitClaim,
    DropPartition,
    ExtendPartition,
    PutSamples,
    RegisterPartition,
    ReleaseClaim,
    RepeatableCall,
)
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.state.answers import Answers


@pytest.fixture
def three() -> Answers:
    """Answers to requests 1, 2, 3 given at 1, 2, 3 seconds; three are kept, for ten seconds."""
    answers = Answers(Limits(remembered_requests=3, remember_s=10.0))
    for second in (1, 2, 3):
        answers.remember(str(second), "put", f"answer {second}", float(second))
    return answers


def test_an_answer_is_kept_for_its_time(three: Answers) -> None:
    assert three.recall("1", "put", 11.0) == "answer 1"
    assert three.recall("1", "put", 11.1) is None
    assert three.recall("2", "put", 11.1) == "answer 2"
    assert len(three) == 2


def test_the_oldest_answer_makes_room(three: Answers) -> None:
    three.remember("4", "put", "answer 4", 3.0)
    assert [three.recall(name, "put", 3.0) for name in "1234"] == [None, "answer 2", "answer 3", "answer 4"]


def test_a_request_id_belongs_to_one_verb(three: Answers) -> None:
    with pytest.raises(Refusal, match="'1' was used for put and cannot be used for clear") as caught:
        three.recall("1", "clear", 3.0)
    assert caught.value.reason is Reason.REQUEST_ID_USED


@pytest.mark.parametrize("request_id", ["", "x" * 65, "é" * 33], ids=["empty", "long", "long in bytes"])
def test_a_malformed_request_id_is_refused(three: Answers, request_id: str) -> None:
    with pytest.raises(Refusal, match="1 to 64 bytes"):
        three.recall(request_id, "put", 3.0)


def test_the_longest_request_id_is_fine(three: Answers) -> None:
    assert three.recall("é" * 32, "put", 3.0) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 5) | st.integers(0, 1 << 60), max_size=30))
def test_the_generations_of_a_put_come_back_as_they_were(generations: list[int]) -> None:
    answers = Answers(Limits())
    answers.remember("put", "put", PutResult(2, 7, int64(generations)), 0.0)
    put = answers.recall("put", "put", 1.0)
    assert isinstance(put, PutResult)
    assert (put.created_rows, put.size_bytes, put.generations.tolist()) == (2, 7, generations)


def test_generations_that_follow_one_another_take_no_space_for_each() -> None:
    answers = Answers(Limits())
    answers.remember("put", "put", PutResult(65_536, 0, np.arange(7, 7 + 65_536)), 0.0)
    ((_, answer),) = answers._answers.items()
    packed = answer.value
    assert (packed.starts.nbytes, packed.lengths.nbytes) == (8, 8)  # type: ignore[attr-defined]  # it is private


# -- each verb ---------------------------------------------------------------------------------------------------------


def register(caller: Caller) -> object:
    return caller.apply(RegisterPartition("again", Definition("p", ("a", "b"), ("train",))))


def extend(caller: Caller) -> object:
    return caller.apply(ExtendPartition("again", "p", ("c",)))


def close(caller: Caller) -> object:
    return caller.apply(ClosePartition("again", "p"))


def drop(caller: Caller) -> object:
    return caller.apply(DropPartition("again", "p"))


def put(caller: Caller) -> object:
    call = caller.put_call(["s1", "new"], {"a": [3, 4]})
    answer = caller.apply(PutSamples("again", "p", call.sample_ids, call.columns))
    return caller.finish(answer.ticket) if isinstance(answer, Reservation) else answer


def claim(caller: Caller) -> object:
    return caller.apply(ClaimSamples("again", "p", "train", ("a",), 2, 1))


def commit(caller: Caller) -> object:
    return caller.apply(CommitClaim("again", "c-2"))


def commit_with_columns(caller: Caller) -> object:
    answer = caller.apply(CommitClaim("again", "c-2", caller.commit_call("", {"b": [2]}).columns))
    return caller.finish(answer.ticket) if isinstance(answer, Reservation) else answer


def release(caller: Caller) -> object:
    return caller.apply(ReleaseClaim("again", "c-2"))


def clear(caller: Caller) -> object:
    return caller.apply(ClearSamples("again", "p", ["s1", "nothing"]))


@pytest.fixture
def busy(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane with rows s1 (in claim c-2) and s2."""
    caller: Caller = new_caller()
    caller.register(tasks=("train",))
    caller.put_rows(["s1", "s2"], "a")
    assert caller.take("a").claim_id == "c-2"
    return caller


@pytest.mark.parametrize(
    "call", [register, extend, close, drop, put, claim, commit, commit_with_columns, release, clear]
)
def test_a_repeated_call_is_answered_as_before_and_applied_once(busy: Caller, call: Callable[[Caller], object]) -> None:
    busy.now = 5.0
    first = call(busy)
    after = busy.state()
    busy.now += 600.0
    again = call(busy)
    assert repr(again) == repr(first)
    assert busy.state() == after
    assert busy.plane.take_effects() == []


def test_a_claim_that_waited_is_answered_as_its_effect_was(busy: Caller) -> None:
    waiting = ClaimSamples("again", "p", "train", ("b",), 1, 1)
    busy.apply(waiting)
    busy.put_rows(["s2"], "b")
    (granted,) = busy.plane.take_effects()
    assert isinstance(granted, Granted)
    assert repr(busy.apply(waiting)) == repr(granted.grant)
    assert busy.task().claimed_rows == 2


def test_a_refused_call_is_not_remembered(busy: Caller) -> None:
    with busy.refuses(Reason.PARTITION_NOT_FOUND):
        busy.apply(ClearSamples("again", "later", None))
    busy.register(partition_id="later")
    assert busy.apply(ClearSamples("again", "later", None)).cleared_rows == 0


def test_a_request_id_of_another_verb_is_refused(busy: Caller) -> None:
    clear(busy)
    for call in (register, extend, close, drop, put, claim, commit, release):
        with busy.refuses(Reason.REQUEST_ID_USED, "'again'", "clear"):
            call(busy)


OTHERS: dict[str, tuple[Callable[[Caller], object], RepeatableCall[Any]]] = {
    "partition": (register, RegisterPartition("again", Definition("p", ("a", "b", "c"), ("train",)))),
    "fields": (extend, ExtendPartition("again", "p", ("d",))),
    "samples of a put": (put, PutSamples("again", "p", ["s1", "other"], [ColumnSpec("a", BYTES, int64([3, 4]))])),
    "lengths": (put, PutSamples("again", "p", ["s1", "new"], [ColumnSpec("a", BYTES, int64([4, 3]))])),
    "field of a put": (put, PutSamples("again", "p", ["s1", "new"], [ColumnSpec("b", BYTES, int64([3, 4]))])),
    "element type": (
        put,
        PutSamples("again", "p", ["s1", "new"], [ColumnSpec("a", Shape("jagged", "int8", ()), int64([3, 4]))]),
    ),
    "tags": (
        put,
        PutSamples("again", "p", ["s1", "new"], [ColumnSpec("a", BYTES, int64([3, 4]))], [{"x": 1}, {}]),
    ),
    "size of a claim": (claim, ClaimSamples("again", "p", "train", ("a",), 1, 1)),
    "columns of a commit": (commit_with_columns, CommitClaim("again", "c-2", [ColumnSpec("b", BYTES, int64([3]))])),
    "no columns of a commit": (commit_with_columns, CommitClaim("again", "c-2")),
    "reason of a release": (release, ReleaseClaim("again", "c-2", reason="x")),
    "samples of a clear": (clear, ClearSamples("again", "p", ["s2"])),
}


@pytest.mark.parametrize(("call", "other"), OTHERS.values(), ids=OTHERS)
def test_another_call_under_a_request_id_that_was_answered_is_refused_and_changes_nothing(
    busy: Caller, call: Callable[[Caller], object], other: RepeatableCall[Any]
) -> None:
    first = call(busy)
    after = busy.state()
    with busy.refuses(Reason.REQUEST_ID_USED, "'again'", "each call needs an id of its own"):
        busy.apply(other)
    assert busy.state() == after
    assert repr(call(busy)) == repr(first)


def test_a_call_may_be_repeated_by_another_session_and_caller_and_from_another_node(busy: Caller) -> None:
    first = busy.apply(ClaimSamples("again", "p", "train", ("a",), 1, 1, session_id=busy.open_session()))
    again = busy.apply(ClaimSamples("again", "p", "train", ("a",), 1, 1, session_id=busy.open_session(), node=1))
    assert repr(again) == repr(first)
    put_first = busy.put(PutSamples("put", "p", ["s3"], tags=[{"nan": math.nan}], caller="a"))
    put_again = busy.apply(PutSamples("put", "p", ["s3"], tags=[{"nan": math.nan}], caller="b"))
    assert repr(put_again) == repr(put_first)


def test_a_digest_stands_for_the_whole_call(busy: Caller) -> None:
    first = busy.put(PutSamples("again", "p", ["s3"], [ColumnSpec("a", BYTES, int64([3]))], digest=b"x"))
    again = busy.apply(PutSamples("again", "p", ["s3"], [ColumnSpec("a", BYTES, int64([9]))], digest=b"x"))
    assert repr(again) == repr(first)
    with busy.refuses(Reason.REQUEST_ID_USED, "'again'"):
        busy.apply(PutSamples("again", "p", ["s3"], [ColumnSpec("a", BYTES, int64([3]))], digest=b"y"))
    with busy.refuses(Reason.INVALID_REQUEST, "at most 64 bytes, got 65"):
        busy.apply(PutSamples("later", "p", ["s3"], digest=b"x" * 65))
