"""Calls are all that changes the core: what is changed beside them is found.

So no query of any test changes anything: the calls of each are replayed when it is over.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.rows.space import Space


@pytest.fixture
def caller() -> Caller:
    """A data plane with a bit of everything: rows, a claim, a dead row, a group, a session, a waiting claim, a read."""
    one = Caller(Limits(memory_bytes=4096))
    one.register(tasks=("train", "score"), max_deliveries=1)
    one.put_rows(["s1", "s2", "s3", "s4"], "a", size=9)
    one.release(one.take("a").claim_id, reason="bad")
    session = one.open_session(5.0)
    one.take("a", session_id=session)
    one.reserve("g", ["g1", "g2"], session, weight_version=3)
    one.wait(one.claim_call("b"))
    one.read(["s1"], "a")
    one.plane.take_effects()
    return one


@pytest.mark.parametrize(
    "change",
    [
        lambda plane: plane.partitions["p"].rows.merge_tags(0, {"k": 1}),
        lambda plane: plane.partitions["p"].rows["sequence_length"].__setitem__(0, 7),
        lambda plane: plane.partitions["p"].tasks["train"].clock.enter("idle", 5.0),
        lambda plane: plane._answers.remember("id", "put", 1, 0.0),
        lambda plane: plane._state.ticket(),
    ],
    ids=["tags", "a cell of an array", "a clock", "an answer", "a counter"],
)
def test_a_change_that_breaks_no_law_shows_in_the_digest(caller: Caller, change: Callable[[DataPlane], object]) -> None:
    caller.plane.check_replay()
    change(caller.plane)
    with pytest.raises(AssertionError):
        caller.plane.check_replay()


def test_an_answer_that_depends_on_more_than_the_calls_is_found_in_the_replay(caller: Caller) -> None:
    space = caller.plane._state.space
    assert isinstance(space, Space)
    space.allocate(8)
    caller.put_rows(["new"], "a")
    with pytest.raises(AssertionError, match="PutSamples"):
        caller.plane.check_replay()
