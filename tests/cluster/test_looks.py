"""The coordinator looks after its nodes for as long as it lives, whatever Ray answers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cluster.node.conftest import registration
from tests.ranks import refused_port
from tests.waiting import soon

from dataplane_server.cluster.coordinator import actor as module
from dataplane_server.cluster.coordinator.actor import ClusterOptions, Coordinator, end_nodes
from dataplane_server.cluster.coordinator.home_arena import HomeArena
from dataplane_server.cluster.messages import Beat, BeatAnswer, Registered
from dataplane_server.cluster.ray_nodes import RayNodes
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.node_calls import AddNode
from dataplane_server.durability.life import Terms, begin_life
from dataplane_server.storage.arena import Arena

ray_exceptions = pytest.importorskip("ray.exceptions")


class BusyRay:
    """It answers from the second look on. looks: that it has answered."""

    def __init__(self) -> None:
        self.asked = self.looks = 0

    def alive(self, silent: Collection[str]) -> list[str]:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("Ray is too busy")
        self.looks += 1
        return []


@pytest.mark.parametrize("logged", [False, True])
async def test_a_look_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: bool) -> None:
    """With a log, the first look is before the coordinator listens, as it has to know which nodes there are."""
    ray = BusyRay()
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "this_node", lambda: "here")
    monkeypatch.setattr(module, "this_address", lambda: "127.0.0.1")
    monkeypatch.setattr(module, "RayNodes", lambda: ray)
    config = ServerConfig(
        (f"unix://{tmp_path}/grpc",),
        limits=Limits(memory_bytes=1 << 20),
        http=None,
        data_dir=tmp_path / "data" if logged else None,
        durability="process" if logged else "memory",
    )
    coordinator = Coordinator(config, ClusterOptions("c", 1 << 20))
    assert await coordinator.beat(Beat("unknown", 0, (), 0, 0, 0, 0, 0)) == BeatAnswer(False)
    if logged:
        assert ray.looks, "it listened without knowing the nodes"
    await soon(lambda: ray.looks >= 2)
    assert await coordinator.beat(Beat("unknown", 0, (), 0, 0, 0, 0, 0)) == BeatAnswer(False)
    await coordinator.stop()


def test_nodes_that_do_not_answer_keep_a_look_waiting_for_a_second_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        refused_port() as ended,
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),  # it takes one
    ):
        ports = {"ended": ended, **{str(i): full.getsockname()[1] for i in range(30)}}
        nodes = [
            {"NodeID": name, "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
            for name, port in ports.items()
        ]
        monkeypatch.setattr("ray.nodes", lambda: nodes)
        began = time.monotonic()
        assert RayNodes().alive(ports) == [str(i) for i in range(30)]
        assert time.monotonic() - began < 15.0


def test_the_end_of_a_cluster_starts_no_ray() -> None:
    """Its program may have shut Ray down before."""
    end_nodes("c", keep=False)
    assert not pytest.importorskip("ray").is_initialized()


@pytest.fixture
def listen(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """Without a parameter, a Unix socket."""
    return tuple(getattr(request, "param", ())) or (f"unix://{tmp_path}/grpc",)


@pytest.fixture
async def coordinator(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: tuple[str, ...]
) -> Coordinator:
    """Of a node that Ray has alone, and whose actor a test has in `_actors`. With a parameter: its log knows a node."""
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_MAKE_S", 0.1)
    monkeypatch.setattr(module, "this_node", lambda: "here")
    monkeypatch.setattr(module, "this_address", lambda: "127.0.0.2")
    monkeypatch.setattr(module, "RayNodes", lambda: SimpleNamespace(alive=lambda silent: ["here"]))
    monkeypatch.setattr(module, "end_actor", lambda actor, name: None)
    monkeypatch.setattr(module, "end_nodes", lambda name, keep: None)
    monkeypatch.setattr(Coordinator, "_actor_of", lambda self, ray_node: Actor())
    monkeypatch.setattr(Coordinator, "_create_actor", lambda self, ray_node: self._actors.get(ray_node, Actor()))
    config = ServerConfig(listen, limits=Limits(memory_bytes=1 << 20), http=None, insecure=True)
    if getattr(request, "param", False):
        former = replace(config.limits, cluster=True)
        config = replace(config, data_dir=tmp_path / "d", durability="process")
        life = begin_life(Terms(tmp_path / "d", former, False, "process", lambda _: None, arena=HomeArena()))
        life.plane.apply(AddNode("arena@here"), life.now())
        await life.close()
    return Coordinator(config, ClusterOptions("c", 1 << 20))


class Actor:
    """Of a node. error: why it could not be made."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.stopped = False
        self.__ray_ready__ = SimpleNamespace(remote=self._made)
        self.stop = SimpleNamespace(remote=self._stop)

    async def _made(self) -> None:
        if self.error is not None:
            raise self.error

    async def _stop(self, keep: bool = False) -> None:
        self.stopped = True


DIED = ray_exceptions.RayActorError(error_msg="died\nOSError: no space for the arena", actor_init_failed=True)


@pytest.mark.parametrize("coordinator", [False, True], ids=["new", "with a log"], indirect=True)
async def test_a_cluster_whose_first_arena_cannot_be_made_says_why(coordinator: Coordinator) -> None:
    coordinator._actors["here"] = Actor(DIED)
    with pytest.raises(OSError, match="no arena on the coordinator's node: OSError: no space for the arena"):
        await asyncio.wait_for(coordinator.addresses(), 60.0)
    await coordinator.stop()


@pytest.mark.parametrize("error", [DIED, ray_exceptions.RuntimeEnvSetupError("OSError: no space for the arena")])
async def test_a_node_whose_actor_cannot_be_made_is_told_of_once(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    coordinator._ray_node = "another"
    coordinator._actors["here"] = Actor(error)
    await soon(lambda: caplog.messages)
    await asyncio.sleep(0.5)
    (event,) = (json.loads(line) for line in caplog.messages)
    assert (event["event"], event["node"], event["why"]) == ("node_failed", "here", "OSError: no space for the arena")
    await coordinator.stop()


@pytest.mark.parametrize("node", ["here", "gone"])
async def test_looks_go_on_beside_an_actor_that_ray_cannot_place(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, node: str
) -> None:
    """As that of a node that has died."""
    coordinator._actors[node] = Actor(ray_exceptions.ActorUnschedulableError("its node is gone"))
    await soon(lambda: "gone" not in coordinator._actors)
    await asyncio.sleep(0.5)
    assert caplog.messages == []
    await coordinator.stop()


async def test_an_actor_that_a_former_cluster_left_with_less_memory_is_replaced(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    left = coordinator._actors["here"] = Actor()
    arena = Arena(1 << 12, shared=True)
    said = replace(registration(tmp_path, arena, memory_bytes=1 << 12), ray_node="here")
    arena.close()
    assert await coordinator.register(said) is None
    assert left.stopped
    await coordinator.stop()


@pytest.fixture
async def registered(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Registered, Registered]]:
    """What nodes were told: that of the coordinator, and `there`, which is on another machine."""
    monkeypatch.setattr(module, "_NODE_S", 0.1)
    monkeypatch.setattr(module, "RETURN_S", float("inf"))
    monkeypatch.setattr(coordinator._nodes, "alive", lambda silent: ["here", "there"])
    answers, arenas = list[Registered](), list[Arena]()
    for ray_node, host in (("here", socket.gethostname()), ("there", "another machine")):
        (folder := tmp_path / ray_node).mkdir()
        arenas.append(Arena(1 << 20, shared=True, file=folder / "arena"))
        said = replace(registration(folder, arenas[-1]), ray_node=ray_node, host=host)
        answer = await coordinator.register(said)
        assert answer is not None
        answers.append(answer)
    yield answers[0], answers[1]
    await coordinator.stop()
    for arena in arenas:
        arena.close()


async def test_nodes_call_a_coordinator_on_the_machine_where_it_runs_now(
    registered: tuple[Registered, Registered],
) -> None:
    """Ray may have restarted it on another one than where the cluster was started."""
    for told in registered:
        assert told.calls_host == "127.0.0.2"
        _, line = await asyncio.open_connection(told.calls_host, told.calls_port)
        line.close()


@pytest.mark.parametrize("listen", [("127.0.0.1:0", "0.0.0.0:0")], indirect=True)
async def test_clients_of_other_machines_are_told_the_address_that_they_reach(
    coordinator: Coordinator, registered: tuple[Registered, Registered]
) -> None:
    for ray_node in ("here", "there"):
        host, _, port = (await coordinator.where(ray_node))["grpc"].rpartition(":")
        assert (host, port) == ("127.0.0.2", (await coordinator.addresses())["listen"][1].rpartition(":")[2])


@pytest.mark.parametrize("listen", [("127.0.0.1:0",), ()], ids=["loopback", "socket"], indirect=True)
async def test_a_cluster_that_other_machines_cannot_call_says_so(
    coordinator: Coordinator, registered: tuple[Registered, Registered], caplog: pytest.LogCaptureFixture
) -> None:
    address = (await coordinator.addresses())["listen"][0]
    assert (await coordinator.where("here"))["grpc"] == address
    with pytest.raises(OSError, match=f"clients on another machine cannot reach {address}; .* --insecure"):
        await coordinator.where("there")
    (event,) = (json.loads(record.getMessage()) for record in caplog.get_records("setup"))
    assert (event["event"], event["level"], event["node"]) == ("node_cannot_call", "error", 2)
