"""Which node has the mirror of which, and what becomes of a write whose mirror does not follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.waiting import soon

from dataplane_server.cluster import asking
from dataplane_server.cluster.coordinator import mirrors as module
from dataplane_server.cluster.coordinator.members import Member, Members
from dataplane_server.cluster.coordinator.mirrors import Mirrors
from dataplane_server.cluster.messages import BytePlace, Mirrored, Registration
from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.node_calls import AddNode, LoseNode, SetMirror
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import FinishWrite, PutSamples, RegisterPartition
from dataplane_server.core.calls.values import Definition, Run, Runs
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.rows.regions import Mirror
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.shell import Shell

RayError = pytest.importorskip("ray.exceptions").RayError

RUNS = Runs.of([Run(16, 8)])


class Actor:
    """Notes calls, and answers each at once, or when its answer in `answers` is there."""

    def __init__(self, number: int, calls: list[tuple[Any, ...]]) -> None:
        self._number = number
        self._calls = calls
        self.answers: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        self._calls.append((name, self._number, *arguments))
        answers = self.answers.get(name, [])
        return asyncio.ensure_future(_answered(answers.pop(0) if answers else Mirrored.DONE))

    def will(self, name: str, *answers: object) -> None:
        self.answers[name] = list(answers)


async def _answered(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return await answer if isinstance(answer, asyncio.Future) else answer


class Nodes:
    """Nodes 1 to 3 of two hosts, and what their actors were asked."""

    def __init__(self) -> None:
        self.plane = DataPlane(Limits(memory_bytes=1024, cluster=True))
        self.shell = Shell(self.plane, Metrics(self.plane, lambda: True))
        self.members = Members(self.plane)
        self.calls: list[tuple[Any, ...]] = []
        self.mirrors = Mirrors(self.shell, self.members, makes=True)
        for number, host in enumerate(("north", "north", "south"), 1):
            self.shell.apply(AddNode(f"arena-{number}"))
            self.register(number, host)

    def register(self, number: int, host: str = "north", mirrors: tuple[str, ...] = ()) -> Member:
        """An actor that beats for ever."""
        place = BytePlace("127.0.0.1", number, b"")
        said = Registration(f"arena-{number}", "", host, "", "", b"", 1024, 1024, 0, place, "", mirrors)
        member = Member(number, said, Actor(number, self.calls), heard_at=float("inf"))
        self.members.add(member)
        return member

    def actor(self, number: int) -> Actor:
        return cast("Actor", self.members.get(number).actor)

    def silence(self, number: int) -> None:
        self.members.get(number).heard_at = float("-inf")

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == name]

    def fills_of(self, number: int) -> list[tuple[Any, ...]]:
        """Calls that fill mirrors of a node."""
        return [call for call in self.asked("fill_mirror") if call[3] == self.members.place_of(number)]

    def mirrors_of(self, number: int) -> tuple[Mirror, ...]:
        return next(region.mirrors for region in self.plane.nodes() if region.number == number)

    def mirror(self, number: int) -> Mirror | None:
        return next(iter(self.plane.mirrors_of(number)), None)

    def follow(self, number: int) -> asyncio.Task[None]:
        return asyncio.create_task(self.mirrors.follow(number, RUNS))


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(asking, "_LOOK_S", 0.02)
    nodes = Nodes()
    yield nodes
    await nodes.mirrors.close()


@pytest.fixture
def mirrored(nodes: Nodes) -> Nodes:
    """The mirror of node 1 is on node 3."""
    nodes.shell.apply(SetMirror(1, 3, "m"))
    nodes.mirrors.returned(nodes.register(3, mirrors=("m",)))
    return nodes


def put(nodes: Nodes, number: int, size_bytes: int) -> None:
    """A row on a node."""
    column = ColumnSpec("x", Shape("jagged", "uint8", ()), np.array([size_bytes], np.int64))
    nodes.shell.apply(RegisterPartition("register", Definition("p", ("x",), ("train",))))
    begun = nodes.shell.apply(PutSamples("put", "p", ["s"], [column], node=number))
    assert isinstance(begun, Reservation)
    nodes.shell.apply(FinishWrite(begun.ticket))


def end_with_a_row(nodes: Nodes, number: int) -> None:
    """A node dies that has a row."""
    put(nodes, number, 8)
    nodes.members.remove(number)
    nodes.shell.apply(LoseNode(number))
    nodes.mirrors.place_ended()


# -- making them -------------------------------------------------------------------------------------------------------


async def test_mirrors_are_on_other_hosts_as_evenly_as_can_be(nodes: Nodes) -> None:
    nodes.mirrors.look_after()
    await soon(lambda: all(nodes.mirror(number) for number in (1, 2, 3)))
    on = [found.on for number in (1, 2, 3) if (found := nodes.mirror(number))]
    assert on == [3, 3, 1]


async def test_writes_follow_from_before_the_fill_on_and_the_core_knows_after_it(nodes: Nodes) -> None:
    nodes.silence(2)
    made, filled = asyncio.Future[Mirrored](), asyncio.Future[Mirrored]()
    nodes.actor(3).will("make_mirror", made)
    nodes.actor(3).will("fill_mirror", filled)
    nodes.mirrors.look_after()
    await soon(lambda: nodes.asked("make_mirror"))
    assert not nodes.mirrors.follows(1)
    made.set_result(Mirrored.DONE)
    await soon(lambda: nodes.fills_of(1))
    await nodes.follow(1)
    assert nodes.asked("follow")
    assert nodes.mirror(1) is None
    filled.set_result(Mirrored.DONE)
    await soon(lambda: nodes.mirror(1))


async def test_a_mirror_that_cannot_be_made_is_asked_of_another_node(nodes: Nodes) -> None:
    nodes.actor(3).will("make_mirror", RayError("no space"))
    nodes.mirrors.look_after()
    await soon(lambda: nodes.mirror(3))
    nodes.mirrors.look_after()
    await soon(lambda: nodes.mirror(1))
    assert cast("Mirror", nodes.mirror(1)).on == 2


async def test_a_mirror_that_a_write_went_on_without_while_it_was_filled_is_none(nodes: Nodes) -> None:
    filled = asyncio.Future[Mirrored]()
    nodes.actor(3).will("fill_mirror", filled)
    nodes.actor(3).will("follow", Mirrored.UNKNOWN)
    nodes.mirrors.look_after()
    await soon(lambda: nodes.fills_of(1))
    (_, _, name, _, _) = nodes.fills_of(1)[0]
    await nodes.follow(1)
    filled.set_result(Mirrored.DONE)
    while ("drop_mirror", 3, name) not in nodes.calls:
        nodes.mirrors.look_after()
        await asyncio.sleep(0.005)
    assert nodes.mirror(1) != Mirror(3, name)


async def test_a_mirror_of_a_node_that_is_forgotten_is_removed(mirrored: Nodes) -> None:
    mirrored.shell.apply(LoseNode(1))
    mirrored.mirrors.look_after()
    assert ("drop_mirror", 3, "m") in mirrored.calls


async def test_a_node_that_has_ended_gets_a_second_mirror_from_the_first(mirrored: Nodes) -> None:
    end_with_a_row(mirrored, 1)
    mirrored.mirrors.look_after()
    await soon(lambda: len(mirrored.mirrors_of(1)) == 2)
    (_, on, name, node, size_bytes) = next(call for call in mirrored.asked("make_mirror") if call[3] == 1)
    assert (on, node, size_bytes) == (2, 1, 8), "for its row alone"
    filled = next(call for call in mirrored.asked("fill_mirror") if call[2] == name)
    assert filled[3].port == 3
    mirrored.shell.apply(LoseNode(3))
    mirrored.mirrors.place_ended()
    assert mirrored.members.place_of(1).port == 2


# -- writes ------------------------------------------------------------------------------------------------------------


async def test_a_write_ends_when_its_mirror_has_followed(mirrored: Nodes) -> None:
    followed = asyncio.Future[Mirrored]()
    mirrored.actor(3).will("follow", followed)
    assert mirrored.mirrors.follows(1)
    following = mirrored.follow(1)
    await soon(lambda: mirrored.asked("follow"))
    (_, _, secret, name, place, offsets, sizes) = mirrored.asked("follow")[0]
    assert (secret, name) == (mirrored.members.get(3).secret, "m")
    assert (place, offsets.tolist(), sizes.tolist()) == (mirrored.members.place_of(1), [16], [8])
    await asyncio.sleep(0.05)
    assert not following.done()
    followed.set_result(Mirrored.DONE)
    await following
    assert mirrored.mirror(1)


async def test_a_mirror_whose_node_stays_silent_is_forgotten(mirrored: Nodes) -> None:
    mirrored.actor(3).will("follow", asyncio.Future[Mirrored]())
    following = mirrored.follow(1)
    await soon(lambda: mirrored.asked("follow"))
    mirrored.silence(3)
    await following
    assert mirrored.mirror(1) is None
    assert len(mirrored.asked("follow")) == 1, "the first call may be under way"


async def test_after_a_lost_call_a_mirror_is_asked_again_only_once_its_node_has_registered_again(
    mirrored: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 200.0)
    mirrored.actor(3).will("follow", RayError("the actor died"))
    following = mirrored.follow(1)
    await soon(lambda: mirrored.asked("follow"))
    await asyncio.sleep(0.1)
    assert len(mirrored.asked("follow")) == 1
    mirrored.mirrors.returned(mirrored.register(3, mirrors=("m",)))
    await following
    assert len(mirrored.asked("follow")) == 2
    assert mirrored.mirror(1) == Mirror(3, "m")


async def test_a_write_is_refused_if_its_node_died_before_its_mirror_had_the_bytes(mirrored: Nodes) -> None:
    mirrored.actor(3).will("follow", *[Mirrored.NO_SOURCE] * 99)
    mirrored.silence(1)
    with pytest.raises(Refusal) as refused:
        await mirrored.follow(1)
    assert refused.value.reason is Reason.NODE_LOST
    assert mirrored.mirror(1), "it has what was finished before"


async def test_a_mirror_that_cannot_reach_a_node_that_lives_is_forgotten(
    mirrored: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 200.0)
    mirrored.actor(3).will("follow", *[Mirrored.NO_SOURCE] * 99)
    following = mirrored.follow(1)
    await soon(lambda: len(mirrored.asked("follow")) > 1)
    assert mirrored.mirror(1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float("inf")))  # which ends its patience
    await following
    assert mirrored.mirror(1) is None


# -- nodes that come and go --------------------------------------------------------------------------------------------


async def test_a_node_that_comes_back_without_its_mirror_has_none(mirrored: Nodes) -> None:
    assert mirrored.mirrors.returned(mirrored.register(3)) == ()
    assert mirrored.mirror(1) is None


async def test_the_bytes_of_a_node_that_has_ended_are_where_its_mirror_is(mirrored: Nodes) -> None:
    told = mirrored.members.placed
    end_with_a_row(mirrored, 1)
    assert mirrored.members.place_of(1).port == 3
    again = mirrored.register(3, mirrors=("m",))
    again.registration = replace(again.registration, bytes_at=BytePlace("127.0.0.1", 33, b""))
    mirrored.mirrors.returned(again)
    assert mirrored.members.placed_since(told)[1].port == 33
