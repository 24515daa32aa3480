"""What a user of the command sees: addresses, a banner or events, health, reflection, refusals."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterable
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests import commands
from tests.integration.access.conftest import Pki
from tests.integration.command.conftest import COMMAND, Command, Start
from tests.waiting import eventually

from dataplane_client.client import connect
from dataplane_server.version import VERSION

pytestmark = pytest.mark.xdist_group("command")  # so that one server does for all

SERVICE = "rl_dataplane.v1.DataPlaneService"


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("command") / "dataplane.sock"


@pytest.fixture(scope="module")
def command(start_for_all: Start, socket: Path) -> Command:
    """One server for the tests of this module, on a Unix socket, TCP and HTTP."""
    listen = ("--listen", f"unix://{socket}", "--listen", "127.0.0.1:0")
    return start_for_all(*listen, "--http", "127.0.0.1:0", "--reflection")


def lines_until(terminal: Iterable[str], word: str) -> list[str]:
    lines = []
    for line in terminal:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(lines)


def fetch(url: str) -> HTTPResponse:
    response = urllib.request.urlopen(url, timeout=120)  # noqa: S310  # our own server's URL
    assert isinstance(response, HTTPResponse)
    return response


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_on_a_terminal_it_prints_plain_lines_and_a_snippet_that_runs_as_it_is(scheme: str, tmp_path: Path) -> None:
    terminal, screen = pty.openpty()
    listen = f"unix://{tmp_path}/a.sock"
    flags = ["--listen", listen, "--http", "127.0.0.1:0", "--memory", "16MiB"]
    if scheme == "https":
        files = Pki(tmp_path).issue("server", "127.0.0.1")
        flags += ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
    with subprocess.Popen([COMMAND, *flags], stdout=screen, stderr=screen) as process:
        os.close(screen)
        with os.fdopen(terminal, encoding="utf-8") as shown:
            try:
                banner = lines_until(shown, "register_partition")
                snippet = textwrap.dedent("".join(line for line in banner if line.startswith("    ")))
                exec(snippet, {})  # noqa: S102  # what the test is about
            finally:
                process.terminate()
            log = [line[10:-1] for line in lines_until(shown, "stopped")]
    assert banner[0] == f"RL Data Plane {VERSION} serves gRPC on {listen}\n"
    assert banner[1].startswith(f"page on {scheme}://127.0.0.1:")
    assert "# registering again is safe\n" in snippet
    assert log[1] == "info     draining  grace_s=20.0"
    assert log[2].startswith("info     stopped  drained_s=")


def test_all_addresses_lead_to_one_server(command: Command) -> None:
    unix, tcp = command.addresses
    with connect(unix) as one, connect(tcp) as other:
        one.register_partition("shared", ["x"], 0, ["train"])
        one.put_samples(["s"], "shared", {"x": torch.ones(1)})
        assert other.get_samples(["s"], "shared", ["x"])["x"].tolist() == [1.0]
        assert other.server_status().memory_budget_bytes == 64 << 20


@pytest.mark.parametrize("transport", [0, 1], ids=["unix", "tcp"])
def test_reflection_lists_and_describes_the_service(command: Command, transport: int) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    about = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
    with grpc.insecure_channel(command.addresses[transport]) as channel:
        reflect: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        response = next(reflect(iter([request]), timeout=120))
        described = next(reflect(iter([about]), timeout=120)).file_descriptor_response
    names = {service.name for service in response.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    assert b"PutSamples" in b"".join(described.file_descriptor_proto)


def test_health_and_metrics_answer_and_other_paths_are_not_found(command: Command) -> None:
    with fetch(f"http://{command.http_address}/healthz") as response:
        assert (response.status, response.read()) == (200, b"ok\n")
    with fetch(f"http://{command.http_address}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
    with pytest.raises(HTTPError) as caught:
        fetch(f"http://{command.http_address}/secrets")
    caught.value.close()
    assert caught.value.code == 404


def test_a_grpc_client_on_the_http_port_is_one_line_of_the_log(start_command: Start, tmp_path: Path) -> None:
    command = start_command("--listen", f"unix://{tmp_path}/a.sock", "--http", "127.0.0.1:0")
    with grpc.insecure_channel(command.http_address) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        with pytest.raises(grpc.RpcError):
            check(health_pb2.HealthCheckRequest(), timeout=120)
    eventually(lambda: command.log)
    assert command.end() == 0
    *refused, draining, stopped = map(json.loads, command.log.splitlines())
    assert (draining["event"], stopped["event"]) == ("draining", "stopped")
    assert {(event["event"], event["level"]) for event in refused} == {("http_request_refused", "info")}
    assert "request from 127.0.0.1: it is not HTTP/1.1, as if a gRPC client had the wrong port" in refused[0]["why"]
    assert "Traceback" not in command.log


def refusal_of(*flags: str, python: tuple[str, ...] = ()) -> str:
    """Why the command did not start; it writes one line and does nothing else."""
    ended = commands.run([*(python or (str(COMMAND),)), *flags, "--memory", "16MiB"])
    assert (ended.returncode, ended.stdout) == (1, "")
    event = json.loads(ended.stderr)
    assert (event["event"], event["level"]) == ("start_failed", "error")
    return str(event["why"])


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        (["--access", "/nope/access.json"], "/nope/access.json"),
        (["--tls-cert", "/nope/tls.crt", "--tls-key", "/nope/tls.key"], "/nope/tls.crt"),
    ],
    ids=["access", "tls"],
)
def test_a_missing_file_is_named_in_words(tmp_path: Path, flags: list[str], missing: str) -> None:
    why = refusal_of("--listen", f"unix://{tmp_path}/a.sock", "--http", "", *flags)
    assert why == f"{missing}: No such file or directory"


@pytest.mark.long
def test_reflection_without_its_package_names_the_extra() -> None:
    code = "import sys; sys.modules['grpc_reflection'] = None; from dataplane_server.cli import main; main()"
    why = refusal_of("--listen", "127.0.0.1:0", "--http", "", "--reflection", python=(sys.executable, "-c", code))
    assert why == "--reflection needs grpcio-reflection: pip install 'rl-dataplane[reflection]'"
