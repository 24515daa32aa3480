"""A server that runs out of descriptors, and odd requests at its HTTP port: the log stays short, and JSON."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.command.conftest import Command, Start
from tests.waiting import eventually

from dataplane_client.client import connect


@pytest.fixture
def fewer_descriptors() -> Iterator[None]:
    """Processes that are started meanwhile have a soft limit below the hard one, and above what this process uses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard - 1), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("fewer_descriptors")
def test_the_command_raises_its_limit_of_descriptors(start_command: Start) -> None:
    command = start_command("--listen", "127.0.0.1:0")
    limits = Path(f"/proc/{command.process.pid}/limits").read_text()
    found = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits)
    assert found is not None
    assert found[1] == found[2]


@pytest.fixture
def serving(start_command: Start, tmp_path: Path) -> tuple[Command, str, int]:
    """A server, its socket, and its port for HTTP."""
    path = f"{tmp_path}/dataplane.sock"
    command = start_command("--listen", f"unix://{path}", "--http", "127.0.0.1:0")
    return command, path, int(command.http_address.rpartition(":")[2])


def test_a_server_without_descriptors_logs_once_and_serves_when_there_are_some(
    serving: tuple[Command, str, int],
) -> None:
    command, path, port = serving
    resource.prlimit(command.process.pid, resource.RLIMIT_NOFILE, (40, 40))
    with contextlib.ExitStack() as opened:
        for _ in range(40):
            idle = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            idle.connect(f"{path}.local")
        scrape = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        scrape.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: "accept_failed" in command.log)
        time.sleep(1.0)
        assert len(command.log) < 10_000
        assert {json.loads(line)["event"] for line in command.log.splitlines()} >= {"accept_failed"}
    with connect(f"unix://{path}", timeout_s=120.0) as client:
        assert client.server_status().rows == 0
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=120).read() == b"ok\n"


REQUESTS = {
    "an unknown method": b"BREW /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a bad header": b"GET /metrics HTTP/1.1\r\nHost x\r\n\r\n",
    "a long line": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    "a bad length": b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
}


def test_odd_requests_leave_no_more_than_a_line_of_json_in_the_log(serving: tuple[Command, str, int]) -> None:
    command, _, port = serving
    before = len(command.log.splitlines())
    for request in REQUESTS.values():
        with socket.create_connection(("127.0.0.1", port), timeout=120) as peer:
            peer.sendall(request)
            assert peer.recv(100).startswith(b"HTTP/1.")
    command.end()
    events = [json.loads(line)["event"] for line in command.log.splitlines()]
    assert events[-2:] == ["draining", "stopped"]
    assert len(events[before:-2]) <= len(REQUESTS)
