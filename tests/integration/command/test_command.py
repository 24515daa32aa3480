"""What a user of the command sees: banner, addresses, health, reflection, refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from dataplane_client.client import connect

pytestmark = pytest.mark.xdist_group("command")  # so that one server does for all

SERVICE = "rl_dataplane.v1.DataPlaneService"
COMMAND = Path(sys.executable).parent / "dataplane-server"


class Command(Protocol):
    banner: str
    log: str
    process: subprocess.Popen[str]

    def end(self) -> int: ...


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("command") / "dataplane.sock"


@pytest.fixture(scope="module")
def command(start_command: Callable[..., Command], socket: Path) -> Command:
    """One server for the tests of this module, on a Unix socket, TCP and HTTP."""
    return start_command("--listen", f"unix://{socket}", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture(scope="module")
def addresses(command: Command) -> list[str]:
    return re.findall(r"serves gRPC on (\S+)", command.banner)


@pytest.fixture(scope="module")
def http(command: Command) -> str:
    found = re.search(r"metrics on (http://\S+)/metrics", command.banner)
    assert found is not None
    return found[1]


def fetch(url: str) -> HTTPResponse:
    response = urllib.request.urlopen(url, timeout=20)  # noqa: S310  # our own server's URL
    assert isinstance(response, HTTPResponse)
    return response


# -- banner ------------------------------------------------------------------------------------------------------------


def test_the_banner_lists_every_address(addresses: list[str], socket: Path) -> None:
    assert addresses[0] == f"unix://{socket}"
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d+", addresses[1])


def test_the_snippet_of_the_banner_runs_as_it_is(command: Command, addresses: list[str]) -> None:
    snippet = textwrap.dedent("\n".join(line for line in command.banner.splitlines() if line.startswith("    ")))
    subprocess.run([sys.executable, "-c", snippet], check=True, timeout=60)
    with connect(addresses[0]) as client:
        assert "train" in [partition.partition_id for partition in client.partitions()]


def test_all_addresses_lead_to_one_server(addresses: list[str]) -> None:
    with connect(addresses[0]) as one, connect(addresses[1]) as other:
        one.register_partition("shared", ["x"], 0, ["train"])
        one.put_samples(["s"], "shared", {"x": torch.ones(1)})
        assert other.get_samples(["s"], "shared", ["x"])["x"].tolist() == [1.0]
        assert other.server_status().memory_budget_bytes == 64 << 20


def test_events_go_to_stderr_as_json_lines(command: Command, addresses: list[str]) -> None:
    events = [json.loads(line) for line in command.log.splitlines()]
    assert events[0]["event"] == "serving"
    assert events[0]["listen"] == addresses


# -- probes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["", SERVICE])
@pytest.mark.parametrize("transport", [0, 1], ids=["unix", "tcp"])
def test_health_is_serving(addresses: list[str], transport: int, service: str) -> None:
    with grpc.insecure_channel(addresses[transport]) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        response = check(health_pb2.HealthCheckRequest(service=service), timeout=20)
    assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_health_of_another_service_is_not_found(addresses: list[str]) -> None:
    with grpc.insecure_channel(addresses[0]) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        with pytest.raises(grpc.RpcError) as caught:
            check(health_pb2.HealthCheckRequest(service="nope"), timeout=20)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("transport", [0, 1], ids=["unix", "tcp"])
def test_reflection_lists_the_service(addresses: list[str], transport: int) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(addresses[transport]) as channel:
        reflect: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        response = next(reflect(iter([request]), timeout=20))
    names = {service.name for service in response.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


def test_reflection_describes_the_service(addresses: list[str]) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
    with grpc.insecure_channel(addresses[0]) as channel:
        reflect: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        response = next(reflect(iter([request]), timeout=20))
    assert b"PutSamples" in b"".join(response.file_descriptor_response.file_descriptor_proto)


def test_healthz_answers_ok(http: str) -> None:
    with fetch(f"{http}/healthz") as response:
        assert (response.status, response.read()) == (200, b"ok\n")


def test_metrics_are_text_that_prometheus_reads(http: str) -> None:
    with fetch(f"{http}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    assert [sample.value for sample in families["dataplane_memory_budget_bytes"].samples] == [64 << 20]


def test_other_paths_are_not_found(http: str) -> None:
    with pytest.raises(HTTPError) as caught:
        fetch(f"{http}/secrets")
    caught.value.close()
    assert caught.value.code == 404


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--listen", "0.0.0.0:0"], 2, "can be reached from other hosts"),
        (["--listen", "unix:///nonexistent/dataplane.sock"], 1, "cannot listen on unix:///nonexistent/dataplane.sock"),
    ],
    ids=["public address", "unusable address"],
)
def test_the_command_ends_with_a_message_and_a_code_for_an(flags: list[str], code: int, message: str) -> None:
    command = [str(COMMAND), *flags, "--http", ""]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert ended.returncode == code
    assert message in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
