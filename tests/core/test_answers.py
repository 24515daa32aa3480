"""Calls that are repeated with the same request_id: applied once, answered as the first time, for a while."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.caller import Caller, int64

from dataplane_server.core.calls.answers import PutResult, Reservation
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
    assert caught.value.reason is Reason.INVALID_REQUEST


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


def test_a_refused_call_is_not_remembered(busy: Caller) -> None:
    with busy.refuses(Reason.PARTITION_NOT_FOUND):
        busy.apply(ClearSamples("again", "later", None))
    busy.register(partition_id="later")
    assert busy.apply(ClearSamples("again", "later", None)).cleared_rows == 0


def test_a_request_id_of_another_verb_is_refused(busy: Caller) -> None:
    clear(busy)
    for call in (register, extend, close, drop, put, claim, commit, release):
        with busy.refuses(Reason.INVALID_REQUEST, "'again'", "clear"):
            call(busy)
