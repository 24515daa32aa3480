"""A server that ends under load: told to, it loses nothing that it has accepted; killed, its clients find the next."""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.forked import FORKS
from tests.integration.command.conftest import Command, Start
from tests.integration.command.held_put import HeldPut
from tests.integration.command.load import THREADS, Tally, load, register
from tests.integration.failpoints.lives import errors_in
from tests.scraping import total
from tests.waiting import eventually

from dataplane_client.client import connect

pytestmark = FORKS

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
GRACE_S = 1000.0


class Outside:
    """What a server tells people and machines that watch it from outside, also while it drains."""

    def __init__(self, command: Command, channel: grpc.Channel) -> None:
        self._command = command
        self._check: Any = health_pb2_grpc.HealthStub(channel).Check

    def health(self, service: str) -> int:
        return int(self._check(health_pb2.HealthCheckRequest(service=service), timeout=120).status)

    def healthz(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{self._command.http_address}/healthz", timeout=120) as response:
                return int(response.status)
        except HTTPError as error:
            error.close()
            return error.code

    def total(self, name: str, **labels: str) -> float:
        """The sum of a counter over the series that have these labels."""
        return total(self._command, name, **labels)


@pytest.fixture
def command(start_command: Start, tmp_path: Path) -> Command:
    """A server on a Unix socket and TCP, watched over HTTP and by probes."""
    listen = ("--listen", f"unix://{tmp_path}/dataplane.sock", "--listen", "127.0.0.1:0")
    ports = ("--http", "127.0.0.1:0", "--health", "127.0.0.1:0")
    return start_command(*listen, *ports, "--grace", str(GRACE_S), "--memory", "512MiB")


@pytest.fixture
def outside(command: Command) -> Iterator[Outside]:
    with grpc.insecure_channel(command.health) as channel:
        yield Outside(command, channel)


@pytest.fixture
def held_put(command: Command) -> Iterator[HeldPut]:
    """A call that holds up the end, so that there is somebody left to ask."""
    unix, _ = command.addresses
    with connect(unix) as client, grpc.insecure_channel(unix) as channel:
        client.register_partition("p", ["x"], 0, ["train"])
        register(client)
        before = client.server_status().memory_used_bytes
        put = HeldPut(channel)
        eventually(lambda: client.server_status().memory_used_bytes > before)
        yield put
        put.let_go.set()


def is_busy(tally: Tally) -> bool:
    """Whether a client has had each of its calls returned, several times."""
    return all(tally.calls[verb] >= 5 for verb in ("put", "claim", "read", "commit", "clear"))


@pytest.mark.long
def test_sigterm_under_load_fails_no_call_that_was_accepted(
    command: Command,
    outside: Outside,
    held_put: HeldPut,
    threads: ThreadPoolExecutor,
    tmp_path: Path,
) -> None:
    unix, tcp = command.addresses
    assert (outside.health("readiness"), outside.health("liveness"), outside.healthz()) == (SERVING, SERVING, 200)
    with load((unix, "shm"), (unix, "grpc"), (tcp, "grpc")) as clients:
        eventually(lambda: all(is_busy(tally) for tally in clients.tallies()))
        assert [tally.transport for tally in clients.tallies()] == ["shm", "grpc", "grpc"]
        began = time.monotonic()
        ended = threads.submit(command.end)
        tallies = clients.tallies(ended=True)
    told = sum(tallies, Tally())

    # Every thread went on until it was told that the server is going, and of nothing else.
    assert [message for tally in tallies for message in tally.messages] == []
    assert told.ended == {"UnavailableError": 3 * THREADS}

    # The server, which still waits for one call, has done what the clients were told, and no more.
    assert outside.total("dataplane_rows_put_total", partition="flow") == told.rows["put"]
    assert outside.total("dataplane_puts_total", partition="flow") == told.calls["put"]
    assert (
        outside.total("dataplane_row_deliveries_ended_total", partition="flow", how="committed") == told.rows["commit"]
    )
    assert outside.total("dataplane_commits_total", partition="flow") == told.calls["commit"]
    assert outside.total("dataplane_calls_total", code="INTERNAL") == 0
    assert (outside.health("readiness"), outside.health(""), outside.healthz()) == (NOT_SERVING, NOT_SERVING, 503)
    assert outside.health("liveness") == SERVING
    assert not ended.done()

    held_put.let_go.set()
    assert held_put.call.result(120).created_rows == 1
    assert ended.result(120) == 0
    assert time.monotonic() - began < GRACE_S
    assert list(tmp_path.iterdir()) == []
    assert errors_in(command.log) == []


def test_clients_of_a_server_that_is_killed_under_load_go_on_with_the_next_one(
    command: Command, start_command: Start, tmp_path: Path
) -> None:
    unix, tcp = command.addresses
    with connect(unix) as client:
        register(client)
    with load((unix, "shm"), (unix, "grpc"), (tcp, "grpc"), patient=True) as clients:
        eventually(lambda: all(is_busy(tally) for tally in clients.tallies()))
        assert command.end(signal.SIGKILL) == -signal.SIGKILL
        assert {path.name for path in tmp_path.iterdir()} == {"dataplane.sock", "dataplane.sock.local"}
        before = clients.tallies()
        start_command("--listen", unix, "--listen", tcp)

        def went_on() -> bool:
            after = clients.tallies()
            return all(
                now.calls[verb] > was.calls[verb] + 5
                for was, now in zip(before, after, strict=True)
                for verb in was.calls
            )

        eventually(went_on)
        tallies = clients.tallies()
    assert [tally.transport for tally in tallies] == ["shm", "grpc", "grpc"]
    assert [tally.ended for tally in tallies] == [{}, {}, {}]
