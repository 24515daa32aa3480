"""The image's entry point in the built root, as non-root and with nothing to write to but the volumes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.deploy.image.container import GROUP, IMAGE, USER, ServerProcess, run, server, volume
from tests.ranks import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("built_root")]

SERVING = health_pb2.HealthCheckResponse.SERVING
SERVING_WITHIN_S = 2.0
GRACE_S = 20.0
STARTS = 5


@pytest.fixture(scope="module")
def mounted() -> Iterator[Path]:
    with volume() as folder:
        yield folder


@pytest.fixture(scope="module")
def addresses() -> dict[str, str]:
    return _free_addresses()


@pytest.fixture(scope="module")
def running(mounted: Path, addresses: dict[str, str]) -> Iterator[ServerProcess]:
    with server([*_arguments(addresses), "--memory=64MiB", "--data-dir=/run/dataplane/rows"], mounted) as process:
        _serves(addresses["--health"], "")
        yield process


def test_it_serves_within_two_seconds() -> None:
    took = []
    for _ in range(STARTS):
        addresses = _free_addresses()
        with volume() as mounted, server(_arguments(addresses), mounted) as process:
            _serves(addresses["--health"], "readiness")
            took.append(time.monotonic() - process.started_at)
            assert process.end() == 0
    print(f"\nSERVING after {', '.join(f'{seconds:.2f}' for seconds in took)} s")  # noqa: T201  # a figure of the release
    assert min(took) < SERVING_WITHIN_S, "whatever else runs on the machine only adds to it"


def test_it_is_the_named_user_with_no_rights_and_the_first_process_of_its_container(running: ServerProcess) -> None:
    lines = Path(f"/proc/{running.pid}/status").read_text().splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert fields["Uid"] == [str(USER)] * 4
    assert fields["Gid"] == [str(GROUP)] * 4
    assert fields["NSpid"][-1] == "1"
    assert {int(fields[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == ["1"]


@pytest.mark.parametrize("service", ["", "readiness", "liveness", "rl_dataplane.v1.DataPlaneService"])
@pytest.mark.usefixtures("running")
def test_probes_are_answered(addresses: dict[str, str], service: str) -> None:
    assert _status(addresses["--health"], service) == SERVING


@pytest.mark.usefixtures("running")
def test_its_command_finds_it_without_being_told_where(mounted: Path) -> None:
    done = run(["dataplane", "status"], mounted)
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = done.stdout.splitlines()
    assert first == "unix:///run/dataplane/dataplane.sock: serving, healthy"
    assert "no partitions" in others
    assert any("through shared memory" in line for line in others)


@pytest.mark.usefixtures("running")
def test_nothing_can_be_written_but_the_volumes(mounted: Path) -> None:
    code = """
import errno, sys
for folder in sys.argv[1:]:
    try:
        open(f"{folder}/new", "x").close()
        print("written")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    volumes = ["/run/dataplane", "/tmp"]  # noqa: S108  # the container's own
    others = ["/", "/etc", "/run", "/usr/local/lib/python3.11/dist-packages", "/var/lib"]
    done = run(["python3.11", "-c", code, *volumes, *others], mounted)
    assert done.stdout.split() == ["written"] * len(volumes) + ["EROFS"] * len(others)
    (mounted / "new").unlink()


def test_sigterm_ends_it_within_its_grace_and_its_sockets_are_gone() -> None:
    addresses = _free_addresses()
    with volume() as mounted, server(_arguments(addresses), mounted) as process:
        _serves(addresses["--health"], "")
        assert {path.name for path in mounted.iterdir()} >= {"dataplane.sock", "dataplane.sock.local"}
        began = time.monotonic()
        assert process.end() == 0
        assert time.monotonic() - began < GRACE_S
        assert not list(mounted.iterdir())


def _free_addresses() -> dict[str, str]:
    """Of this machine, by the flag that takes one."""
    return {flag: f"127.0.0.1:{free_port()}" for flag in ("--http", "--health")}


def _arguments(addresses: dict[str, str]) -> list[str]:
    """The image's own, with these addresses in place of its ports, which others of this machine may have."""
    words = [word.partition("=") for word in IMAGE.words("CMD")]
    return [f"{flag}={addresses.get(flag, value)}" for flag, _, value in words]


def _serves(address: str, service: str) -> None:
    """Wait until it does."""
    eventually(lambda: _listens(address) and _status(address, service) == SERVING)


def _listens(address: str) -> bool:
    """A channel of gRPC that found nobody would wait a second before it tries again."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _status(address: str, service: str) -> int:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=120).status)
