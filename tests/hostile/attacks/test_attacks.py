"""Every attack that is known: the server stays up, its memory bounded, and serves others meanwhile and afterwards.

Each meets a fresh server with 64 MiB for values. Beside it a client sends rows through their lives over shared memory
and asks for health over gRPC.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.hostile.attacks.table import ATTACKS
from tests.hostile.target import Target, own_bytes, peak_of
from tests.integration.command.conftest import Command

from dataplane_client.client import DataPlaneClient, connect

SECONDS = 3.0
MOST_LOG_BYTES = 1 << 20
PATIENCE_S = 90.0
ROW = torch.arange(1000)[None]
LONG = {"half calls", "answers unread"}
NAMES = [pytest.param(name, marks=pytest.mark.long if name in LONG else pytest.mark.soak) for name in ATTACKS]


@pytest.mark.parametrize("name", NAMES)
def test_a_server_under_attack_stays_up_within_its_memory_and_serves_others(name: str, tmp_path: Path) -> None:
    attack, address = ATTACKS[name], f"unix://{tmp_path}/dataplane.sock"
    flags = ("--memory", "64MiB", "--listen", address, "--http", "127.0.0.1:0", *attack.flags)
    with closing(Command([*flags], tmp_path / "server.log")) as server:
        with (
            connect(address, transport="shm", timeout_s=PATIENCE_S) as client,
            grpc.insecure_channel(address.replace("unix://", "unix:")) as channel,
        ):
            assert is_serving(channel)
            client.register_partition("probe", ["x"], 0, ["train"])
            live(client, "before")
            before, begun, served = own_bytes(server.process.pid), 0, 0
            with peak_of(server.process.pid) as peak, under_attack(name, server, address):
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    begun += 1
                    with contextlib.suppress(*attack.fails):
                        live(client, f"{begun}")
                        served += 1
                assert is_serving(channel)
        assert served > 0
        assert max(peak) - before <= attack.memory_mib << 20
        with connect(address, transport="shm", timeout_s=PATIENCE_S) as client:
            live(client, "after")
        assert server.process.poll() is None
        assert len(server.log) <= MOST_LOG_BYTES


def live(client: DataPlaneClient, row: str) -> None:
    """Put, read, claim, commit and clear a row."""
    client.put_samples([row], "probe", {"x": ROW})
    assert torch.equal(client.get_samples([row], "probe", ["x"])["x"], ROW)
    client.claim("probe", "train", ["x"], 1).commit()
    client.clear_samples([row], "probe")


def is_serving(channel: grpc.Channel) -> bool:
    found = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    return bool(found.status == health_pb2.HealthCheckResponse.SERVING)


@contextlib.contextmanager
def under_attack(name: str, server: Command, address: str) -> Iterator[None]:
    """A block during which a process of the lowest priority attacks; it must have taken a step."""
    context = get_context("forkserver")
    asked, theirs = context.Pipe()
    attack = (name, server.process.pid, address, server.http_address, theirs)
    process = context.Process(target=attacking, args=attack, daemon=True)
    process.start()
    theirs.close()
    try:
        assert asked.poll(PATIENCE_S)
        asked.recv()
        yield
        asked.send(None)
        assert asked.poll(PATIENCE_S)
        assert asked.recv() > 0
    finally:
        process.kill()
        process.join()


def attacking(name: str, pid: int, address: str, http: str, asked: Connection) -> None:
    """Attack until asked, then tell how many steps that were."""
    os.nice(19)
    with (
        connect(address, transport="grpc", timeout_s=PATIENCE_S) as client,
        closing(Target(pid, address, client, http)) as target,
    ):
        target.fill()
        with closing(ATTACKS[name].run(target)) as steps:  # type: ignore[type-var]
            next(steps)
            asked.send(None)
            done = 0
            while not asked.poll():
                next(steps)
                done += 1
            asked.send(done)
