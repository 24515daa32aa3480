"""What is told of one sample, on a data plane to which things happen."""

from __future__ import annotations

from tests.core.caller import Caller

from dataplane_server.core.calls.answers import ResidentSample


def resident(caller: Caller, sample_id: str) -> ResidentSample:
    found = caller.plane.sample("p", sample_id).resident
    assert found is not None
    return found


def whats(caller: Caller, sample_id: str) -> list[str]:
    return [event.what for event in caller.plane.sample("p", sample_id).events]


def test_the_story_outlives_the_row_and_goes_on_with_the_next_of_its_id(caller: Caller) -> None:
    first = caller.put_rows(["s"], "a").generations
    caller.clear(["s"])
    assert caller.plane.sample("p", "s").resident is None
    assert whats(caller, "s") == ["put", "cleared"]
    second = caller.put_rows(["s"], "a").generations
    assert resident(caller, "s").generation == int(second[0]) > int(first[0])
    assert whats(caller, "s") == ["put", "cleared", "put"]
