"""`ray://NAME`: clients in a Ray cluster ask an actor where the server is, and follow it."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.client.cli.reading import run
from tests.waiting import eventually

from dataplane_client import Credentials, aio
from dataplane_client._connect import locator as _locator
from dataplane_client._connect.channel import Connection
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import InvalidArgumentError, PreconditionError, UnavailableError
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX

ray: Any = pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray")]

Told = dict[str, Any]
TARGET = "ray://main"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """This process is a driver of it."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # sockets need a short path
    already = ray.is_initialized()
    if not already:
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
        system = {"prestart_worker_first_driver": False}
        ray.init(num_cpus=2, object_store_memory=80 << 20, _temp_dir=folder, _system_config=system, **options)
    yield
    if not already:
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def actor(cluster: None) -> Any:
    """The actor that TARGET names. It answers with what it was told last, and not at all before."""
    import asyncio as of_worker

    class Coordinator:
        def __init__(self) -> None:
            self.told: Any = None
            self.nodes: list[str] = []
            self.changed = of_worker.Condition()

        async def where(self, node: str) -> Any:
            async with self.changed:
                self.nodes.append(node)
                self.changed.notify_all()
                await self.changed.wait_for(lambda: self.told is not None)
            if isinstance(self.told, Exception):
                raise self.told
            return self.told

        async def tell(self, told: Any) -> None:
            async with self.changed:
                self.told, self.nodes = told, []
                self.changed.notify_all()

        async def asked(self) -> list[str]:
            async with self.changed:
                await self.changed.wait_for(lambda: bool(self.nodes))
            return self.nodes

    return ray.remote(num_cpus=0)(Coordinator).options(name="main", namespace="rl-dataplane").remote()


@pytest.fixture
def tell(actor: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Have the actor answer with this from now on; None: not at all. Clients share no answer with those of the last
    test.
    """
    monkeypatch.setattr(_locator, "_ray_locators", weakref.WeakValueDictionary())
    ray.get(actor.tell.remote(None))
    yield lambda told: ray.get(actor.tell.remote(told))
    ray.get(actor.tell.remote({}))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Told]]:
    """Start a server, in place of the last one if `again`. Returns where it is, as an actor tells it. durable: its rows
    survive it.
    """
    running: list[ServerThread] = []

    def start(durable: bool = False, again: bool = False) -> Told:
        if again:
            running.pop().stop()
        file = tmp_path / f"{uuid.uuid4().hex[:8]}.sock"
        config = ServerConfig(
            listen=(f"unix://{file}", "127.0.0.1:0"),
            limits=Limits(memory_bytes=1 << 20),
            durability="process" if durable else "memory",
            data_dir=tmp_path / "data" if durable else None,
        )
        server = ServerThread(config)
        running.append(server)
        connection = Connection(server.addresses[1], None)
        nonce = connection.stub.GetServerStatus(pb.GetServerStatusRequest()).shared_memory.nonce
        connection.close()
        return {"grpc": server.addresses[1], "socket": f"{file}{FILE_SUFFIX}", "nonce": nonce}

    yield start
    for server in running:
        server.stop()


Tell = Callable[[Any], None]
Serve = Callable[..., Told]


def put_a_row(client: DataPlaneClient) -> None:
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["a"], "p", {"x": torch.ones(1, 40_000)})  # too large for a message of the local socket


# -- where values travel -----------------------------------------------------------------------------------------------


def test_values_travel_through_the_memory_that_the_actor_names_for_the_node(
    actor: Any, tell: Tell, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(serve())
    monkeypatch.setenv("DATAPLANE_SERVER", TARGET)
    with connect() as client:
        put_a_row(client)
        assert (client.target, client.transport) == (TARGET, "shm")
        assert client.get_data(client.claim("p", "train", ["x"], 1).meta)["x"].sum() == 40_000
        with connect(TARGET) as other:
            assert other.transport == "shm"
    assert set(ray.get(actor.asked.remote())) == {ray.get_runtime_context().get_node_id()}


def test_values_travel_over_grpc_while_the_node_has_no_memory(tell: Tell, serve: Serve) -> None:
    tell({**serve(), "socket": "", "nonce": b""})
    ways = []
    with connect(TARGET) as client:
        put_a_row(client)
        ways.append(client.transport)
        tell(serve(again=True))
        put_a_row(client)
        ways.append(client.transport)
    assert ways == ["grpc", "shm"]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"socket": "", "nonce": b""}, r"this node"),
        ({"socket": "/nowhere.local"}, r"/nowhere\.local: .*No such file"),
        ({"nonce": b"of another server"}, r"/[0-9a-f]+\.sock\.local: "),
    ],
    ids=["none", "no socket", "another server's"],
)
def test_a_client_that_must_share_memory_is_told_why_it_cannot(
    tell: Tell, serve: Serve, other: Told, text: str
) -> None:
    tell({**serve(), **other})
    with pytest.raises(PreconditionError, match=r"ray://main: .*" + text):
        connect(TARGET, transport="shm")


def test_a_client_pickled_into_a_task_works_in_its_process(tell: Tell, serve: Serve) -> None:
    def use(client: DataPlaneClient) -> object:
        with client, client.claim("p", "train", ["x"], 1) as claim:
            return client.get_data(claim.meta)["x"].sum().item(), client.target, client.transport

    tell(serve())
    with connect(TARGET) as client:
        put_a_row(client)
        assert ray.get(ray.remote(num_cpus=0)(use).remote(client)) == (40_000.0, TARGET, "shm")


# -- a server that starts again elsewhere ------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_calls_and_the_session_follow_a_server_that_starts_again_at_another_port(
    tell: Tell, serve: Serve, transport: TransportChoice
) -> None:
    tell(serve(durable=True))
    with connect(TARGET, transport=transport, session_grace_s=6.0) as client:
        put_a_row(client)
        claim = client.claim("p", "train", ["x"], 1)
        session_id = client.sessions()[0].session_id
        told = serve(durable=True, again=True)
        tell(told)
        assert client.partition("p").rows == 1
        with connect(told["grpc"]) as direct:
            silent_s = [direct.sessions()[0].silent_s]

            def beats() -> bool:
                silent_s.append(direct.sessions()[0].silent_s)
                return silent_s[-1] < silent_s[-2]

            eventually(beats)
            assert [session.session_id for session in direct.sessions()] == [session_id]
        assert (client.transport, claim.commit()) == (transport, 1)


def test_a_server_that_starts_again_without_its_rows_gets_another_session(tell: Tell, serve: Serve) -> None:
    tell(serve())

    async def check() -> None:
        async with aio.connect(TARGET) as client:
            await client.register_partition("p", ["x"], 0, ["train"])
            await client.reserve_group("p", "g", ["a"])
            tell(serve(again=True))
            await client.register_partition("p", ["x"], 0, ["train"])
            group = await client.reserve_group("p", "g", ["a"])
            assert client.transport == "shm"
            assert [session.groups for session in await client.sessions()] == [1]
            await group.abort()

    asyncio.run(check())


def test_a_session_leaves_a_server_that_the_actor_no_longer_names_though_its_stream_goes_on(
    tell: Tell, serve: Serve
) -> None:
    """As where the server's host has vanished: no end of the stream arrives."""
    told = serve()
    tell(told)
    with connect(TARGET, session_grace_s=2.0) as client, connect(told["grpc"]) as direct:
        put_a_row(client)
        client.claim("p", "train", ["x"], 1)
        assert len(direct.sessions()) == 1
        tell(serve())
        locator = _locator.locator_of(TARGET)
        former = locator.place

        def is_known() -> bool:
            locator.doubt()  # as a call does that fails
            return locator.wait(200) != former

        eventually(is_known)
        eventually(lambda: direct.sessions() == [])


# -- no server ---------------------------------------------------------------------------------------------------------


NOWHERE = {"grpc": "127.0.0.1:1", "socket": "", "nonce": b""}
UNAVAILABLE = {
    "no actor": ("ray://absent", {}, "ray://absent: "),
    "no answer": (TARGET, None, "ray://main: "),
    "an error": (TARGET, KeyError("no arena"), "ray://main: .*KeyError: 'no arena'"),
    "half an answer": (TARGET, {"grpc": "127.0.0.1:1"}, "ray://main: .*KeyError: 'socket'"),
    "no server there": (TARGET, NOWHERE, "server_status at ray://main: "),
}


@pytest.mark.parametrize(("target", "told", "text"), UNAVAILABLE.values(), ids=UNAVAILABLE)
def test_a_server_that_is_not_found_before_the_deadline_is_unavailable(
    actor: Any, tell: Tell, target: str, told: Any, text: str
) -> None:
    """And the actor is asked twice a second at most."""
    tell(told)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=text):
        connect(target, connect_timeout_s=1.0)
    seconds = time.monotonic() - began
    assert seconds < 60.0
    if target == TARGET:
        assert len(ray.get(actor.asked.remote())) <= 1 + 2 * seconds


def test_a_data_plane_is_waited_for_until_its_actor_runs(tell: Tell, serve: Serve, actor: Any) -> None:
    """The event loop goes on while the actor is asked, and a wait for it ends when it is cancelled."""
    told = serve()

    async def check() -> None:
        cancelled = asyncio.create_task(aio.connect(TARGET))
        await asyncio.wrap_future(actor.asked.remote().future())
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(cancelled), 50)
        connecting = asyncio.create_task(aio.connect(TARGET))
        await asyncio.wrap_future(actor.tell.remote(told).future())
        async with await connecting as client:
            assert client.transport == "shm"

    asyncio.run(check())


def test_outside_of_a_cluster_connecting_says_what_to_do_first(tell: Tell, serve: Serve) -> None:
    code = (
        "import pickle, sys\n"
        "from dataplane_client.client import connect\n"
        "from dataplane_client.errors import PreconditionError\n"
        "client = pickle.load(sys.stdin.buffer)\n"
        f"for use in (lambda: connect({TARGET!r}), lambda: client.claim('p', 'train', ['x'], 1)):\n"
        "    try:\n"
        "        use()\n"
        "    except PreconditionError as error:\n"
        "        print(error)\n"
        "assert 'ray' not in sys.modules\n"
    )
    tell(serve())
    with connect(TARGET) as client:
        packed = pickle.dumps(client)
    done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, timeout=60, check=False)
    says = (
        "ray://main: this process has not joined a Ray cluster: call ray.init(address=...) first, or connect to the "
        "coordinator's gRPC address, host:port\n"
    )
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, 2 * says, "")


# -- refusals before there is a call -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["ray://", "ray://head:10001", "ray://main/p"])
def test_a_target_that_names_no_actor_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=f"'{target}'"):
        connect(target)


def test_a_token_does_not_travel_unencrypted_to_where_the_actor_says(tell: Tell) -> None:
    tell({"grpc": "192.0.2.1:50051", "socket": "", "nonce": b""})
    with pytest.raises(InvalidArgumentError, match=r"192\.0\.2\.1:50051"):
        connect(TARGET, credentials=Credentials(token="secret"))  # noqa: S106  # of no server


def test_commands_ask_for_the_address_of_the_coordinator() -> None:
    code, text = run("status", "-s", TARGET)
    assert code == 2
    assert "write the coordinator's gRPC address, host:port" in " ".join(text.replace("│", "").split())
