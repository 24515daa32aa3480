"""The listener for probes: readiness and liveness told apart, and nothing else told."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.ranks import free_port

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.service.grpc.health import HealthListener
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

SERVICE = "rl_dataplane.v1.DataPlaneService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def config(health: str = "127.0.0.1:0") -> ServerConfig:
    return ServerConfig(listen=("127.0.0.1:0",), health=health, limits=Limits(memory_bytes=1 << 20))


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    """To the probes of a server that serves."""
    server = ServerThread(config())
    assert server.server.health_address is not None
    with grpc.insecure_channel(server.server.health_address) as channel:
        yield channel
    server.stop()


def status_of(channel: grpc.Channel, service: str) -> int:
    check: Any = health_pb2_grpc.HealthStub(channel).Check
    return int(check(health_pb2.HealthCheckRequest(service=service), timeout=200).status)


@pytest.mark.parametrize("service", ["", "readiness", "liveness", SERVICE])
def test_all_is_well_while_the_server_serves(channel: grpc.Channel, service: str) -> None:
    assert status_of(channel, service) == SERVING


@pytest.mark.parametrize("service", ["nope", "Liveness", "grpc.health.v1.Health"])
def test_other_names_are_not_found(channel: grpc.Channel, service: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        status_of(channel, service)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def reflect(channel: grpc.Channel) -> None:
    info: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    list(info(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=200))


def get_status(channel: grpc.Channel) -> None:
    stub: Any = pb_grpc.DataPlaneServiceStub(channel)
    stub.GetServerStatus(pb.GetServerStatusRequest(), timeout=200)


@pytest.mark.parametrize("call", [get_status, reflect], ids=["data", "reflection"])
def test_nothing_else_is_served_there(channel: grpc.Channel, call: Callable[[grpc.Channel], None]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture
async def listener() -> AsyncIterator[HealthListener]:
    listener = HealthListener()
    yield listener
    await listener.stop()


async def test_a_server_that_does_not_listen_yet_is_alive_and_not_ready(listener: HealthListener) -> None:
    async with grpc.aio.insecure_channel(await listener.start("127.0.0.1:0")) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        found = [
            (await check(health_pb2.HealthCheckRequest(service=service), timeout=200)).status
            for service in ("", "readiness", SERVICE, "liveness")
        ]
    assert found == [NOT_SERVING, NOT_SERVING, NOT_SERVING, SERVING]


async def test_a_watch_sees_readiness_come_and_go_and_then_the_end(listener: HealthListener) -> None:
    async with grpc.aio.insecure_channel(await listener.start("127.0.0.1:0")) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"), timeout=200)
        assert (await watch.read()).status == NOT_SERVING
        listener.report(ready=True)
        assert (await watch.read()).status == SERVING
        listener.report(ready=False)
        assert (await watch.read()).status == NOT_SERVING
        await listener.stop()
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE


def test_the_address_is_free_again_when_another_listener_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        health = f"127.0.0.1:{free_port()}"
        with pytest.raises(OSError, match=str(taken)):
            ServerThread(ServerConfig(listen=(taken,), health=health, limits=Limits(memory_bytes=1 << 20)))
    again = ServerThread(config(health))
    assert again.server.health_address == health
    again.stop()
