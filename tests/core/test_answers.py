"""Calls that are repeated with the same request_id: applied once, answered as the first time, for a while."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.core.caller import BYTES, Caller, int64

from dataplane_server.core.calls import requests
from dataplane_server.core.calls.answers import Granted, PutResult, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.state.answers import Answers


def test_the_oldest_answer_makes_room(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(remembered_requests=2)
    caller.register()
    put = caller.put_call(["s1"], {"a": [3]}, create_only=True)
    first = caller.put(put)
    caller.clear(["nothing"])
    assert repr(caller.apply(put)) == repr(first)
    caller.clear(["nothing"])
    with caller.refuses(Reason.SAMPLE_EXISTS):
        caller.apply(put)


@pytest.mark.parametrize("first", [0, 1, 7])
def test_generations_that_follow_one_another_take_no_space_for_each(first: int) -> None:
    generations = np.arange(first, first + 65_536)
    answers = Answers(Limits())
    answers.remember("put", "put", PutResult(65_536, 0, generations), 0.0)
    assert answers.size_bytes < 1000
    again = answers.recall("put", "put", 0.0)
    assert isinstance(again, PutResult)
    assert (again.generations == generations).all()


# -- each verb ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane with rows s1 (in claim c-2) and s2."""
    caller: Caller = new_caller()
    caller.register(tasks=("train",))
    caller.put_rows(["s1", "s2"], "a")
    assert caller.take("a").claim_id == "c-2"
    return caller


def test_a_claim_that_waited_is_answered_as_its_effect_was(busy: Caller) -> None:
    waiting = requests.ClaimSamples("again", "p", "train", ("b",), 1, 1)
    busy.apply(waiting)
    busy.put_rows(["s2"], "b")
    assert repr(busy.apply(waiting)) == repr(busy.effect(Granted).grant)
    assert busy.task().claimed_rows == 2


A, B = (ColumnSpec(name, BYTES, int64([3, 4])) for name in "ab")
PUT = requests.PutSamples("again", "p", ["s1", "new"], [A])
COMMIT = requests.CommitClaim("again", "c-2", [ColumnSpec("b", BYTES, int64([2]))])
CLAIM, RELEASE = requests.ClaimSamples("again", "p", "train", ("a",), 2, 1), requests.ReleaseClaim("again", "c-2")
CLEAR = requests.ClearSamples("again", "p", ["s1", "nothing"])
REGISTER = requests.RegisterPartition("again", Definition("p", ("a", "b"), ("train",)))
OTHERS: dict[str, tuple[requests.RepeatableCall[Any], requests.RepeatableCall[Any]]] = {
    "partition": (REGISTER, requests.RegisterPartition("again", Definition("p", ("a", "b", "c"), ("train",)))),
    "fields": (requests.ExtendPartition("again", "p", ("c",)), requests.ExtendPartition("again", "p", ("d",))),
    "samples of a put": (PUT, replace(PUT, sample_ids=["s1", "other"])),
    "lengths": (PUT, replace(PUT, columns=[ColumnSpec("a", BYTES, int64([4, 3]))])),
    "field of a put": (PUT, replace(PUT, columns=[B])),
    "element type": (PUT, replace(PUT, columns=[ColumnSpec("a", Shape("jagged", "int8", ()), int64([3, 4]))])),
    "tags": (PUT, replace(PUT, tags=[{"x": 1}, {}])),
    "size of a claim": (CLAIM, replace(CLAIM, batch_size=1)),
    "columns of a commit": (COMMIT, replace(COMMIT, columns=[ColumnSpec("b", BYTES, int64([3]))])),
    "claim of a commit": (COMMIT, replace(COMMIT, claim_id="c-3")),
    "no columns of a commit": (COMMIT, replace(COMMIT, columns=())),
    "reason of a release": (RELEASE, replace(RELEASE, reason="x")),
    "samples of a clear": (CLEAR, replace(CLEAR, sample_ids=["s2"])),
    "verb": (CLEAR, RELEASE),
}


def done(caller: Caller, call: requests.RepeatableCall[Any]) -> object:
    answer = caller.apply(call)
    return caller.finish(answer.ticket) if isinstance(answer, Reservation) else answer


@pytest.mark.parametrize(("call", "other"), OTHERS.values(), ids=OTHERS)
def test_another_call_under_a_request_id_that_was_answered_is_refused_and_changes_nothing(
    busy: Caller, call: requests.RepeatableCall[Any], other: requests.RepeatableCall[Any]
) -> None:
    first = done(busy, call)
    after = busy.state()
    with busy.refuses(Reason.REQUEST_ID_USED, "'again'"):
        busy.apply(other)
    assert repr(busy.apply(call)) == repr(first)
    assert busy.state() == after


def test_a_call_may_be_repeated_by_another_session_and_caller_and_from_another_node(busy: Caller) -> None:
    first = busy.apply(requests.ClaimSamples("again", "p", "train", ("a",), 1, 1, session_id=busy.open_session()))
    again = busy.apply(
        requests.ClaimSamples("again", "p", "train", ("a",), 1, 1, session_id=busy.open_session(), node=1)
    )
    assert repr(again) == repr(first)
    put_first = busy.put(requests.PutSamples("put", "p", ["s3"], tags=[{"nan": math.nan}], caller="a"))
    put_again = busy.apply(requests.PutSamples("put", "p", ["s3"], tags=[{"nan": math.nan}], caller="b"))
    assert repr(put_again) == repr(put_first)


def test_a_digest_stands_for_the_whole_call(busy: Caller) -> None:
    first = busy.put(requests.PutSamples("again", "p", ["s3"], [ColumnSpec("a", BYTES, int64([3]))], digest=b"x"))
    again = busy.apply(requests.PutSamples("again", "p", ["s3"], [ColumnSpec("a", BYTES, int64([9]))], digest=b"x"))
    assert repr(again) == repr(first)
    with busy.refuses(Reason.REQUEST_ID_USED, "'again'"):
        busy.apply(requests.PutSamples("again", "p", ["s3"], [ColumnSpec("a", BYTES, int64([3]))], digest=b"y"))
    with busy.refuses(Reason.INVALID_REQUEST, "64", "65"):
        busy.apply(requests.PutSamples("later", "p", ["s3"], digest=b"x" * 65))
