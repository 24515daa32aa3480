"""`dataplane doctor` on real servers: its findings and its advice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.client.cli.reading import read, run, run_json

from dataplane_client import connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread, running_server


def checks(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in document["checks"]}


def test_a_healthy_setup_has_no_problems(socket: Path) -> None:
    code, text = run("doctor", "-s", f"unix://{socket}")
    assert code == 0
    numbers = (r"\d[\d,]*(?:\.\d+)? [KMGT]iB(?= available)", r"(?<=limit  ).*", r"(?<=descriptors).*", r"(?<=clock).*")
    lines = read(text, r"owner \d+:\d+", r"(?<=versions).*", r"(?<=memory limit).*", *numbers)
    assert [line for line in lines if "->" not in line][:-1] == [
        f"unix://{socket}",
        "    check  found",
        f"ok  socket file  {socket}: ~, mode 0600",
        f"ok  memory socket  {socket}.local: ~, mode 0600",
        "ok  server  a call takes ~ (the first, with the connection, ~)",
        "ok  health  healthy",
        f"ok  shared memory  values travel through it: 1.0 MiB, attached at {socket}.local",
        "ok  memory limit~",
        "ok  host memory  ~ available, the arena may take another 1.0 MiB",
        "ok  file descriptors~",
        "ok  versions~",
        "ok  row kernels  compiled",
        f"{_clock_outcome(text)}  clock~",
    ]
    assert re.fullmatch(r"0 problems, [01] warnings?", lines[-1])


def _clock_outcome(text: str) -> str:
    """Whether the clock of the machine that runs this is synchronised."""
    return next(line.split()[0] for line in text.splitlines() if " clock " in line)


def test_the_checks_open_no_session(socket: Path) -> None:
    for _ in range(3):
        run_json("doctor", "-s", f"unix://{socket}")
    with connect(f"unix://{socket}", transport="shm") as client:
        assert client.server_status().sessions == 0


def test_an_unreachable_server_is_a_problem_and_exits_with_1(tmp_path: Path) -> None:
    document = run_json("doctor", "-s", f"unix://{tmp_path}/dataplane.sock", code=1)
    found = checks(document)
    assert document["problems"] == 2
    assert found["socket file"]["found"] == f"{tmp_path}/dataplane.sock does not exist"
    assert "mount the same volume" in found["socket file"]["advice"]
    assert found["memory socket"]["outcome"] == "warning"
    assert found["server"]["outcome"] == "problem"
    assert not {"health", "shared memory", "memory limit", "host memory"} & found.keys()
    assert {"file descriptors", "versions", "row kernels", "clock"} <= found.keys()


def test_a_server_that_refuses_the_token_is_not_looked_for(tmp_path: Path) -> None:
    access = tmp_path / "access.json"
    access.write_text('{"callers": []}')
    server = ServerThread(ServerConfig(listen=("127.0.0.1:0",), access=access))
    found = checks(run_json("doctor", "-s", server.addresses[0], code=1))
    code, text = run("top", "-n", "1", "-s", server.addresses[0])
    server.stop()
    assert (code, "not reachable" in text, ": refused, retrying" in text) == (1, False, True), text
    assert "the call has no token" in found["server"]["found"]
    assert found["server"]["advice"].startswith("correct the token")


def test_a_volume_that_is_not_mounted_and_a_file_in_the_place_of_the_socket_are_named(tmp_path: Path) -> None:
    (tmp_path / "dataplane.sock").touch()
    socket = tmp_path / "dataplane.sock"
    causes = {tmp_path / "run/a.sock": f"folder {tmp_path}/run does not exist", socket: f"{socket} is not a socket"}
    for place, cause in causes.items():
        assert checks(run_json("doctor", "-s", f"unix://{place}", code=1))["socket file"]["found"] == cause


@pytest.mark.parametrize(
    ("shares", "outcome", "found"),
    [(True, "ok", "attached at @rl-dataplane-"), (False, "warning", "travel over gRPC: the server shares no memory")],
    ids=["shared", "not shared"],
)
def test_shared_memory_is_found_through_a_port_of_this_host(shares: bool, outcome: str, found: str) -> None:
    server = ServerThread(ServerConfig(("127.0.0.1:0",), share_memory=shares, limits=Limits(memory_bytes=1 << 20)))
    checked = checks(run_json("doctor", "-s", server.addresses[0]))
    server.stop()
    assert (checked["shared memory"]["outcome"], "socket file" in checked) == (outcome, False)
    assert found in checked["shared memory"]["found"]


def test_the_reasons_of_status_are_warnings() -> None:
    with running_server(limits=Limits(memory_bytes=1 << 20, max_rows=1)) as address, connect(address) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.zeros(1, 1)})
        found = checks(run_json("doctor", "-s", address))
    assert found["health"]["outcome"] == "warning"
    assert found["health"]["found"].startswith("it holds 1 of at most 1 rows")
