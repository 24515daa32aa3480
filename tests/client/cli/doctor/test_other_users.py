"""`dataplane doctor` as a user without rights, as in a pod whose containers run as different users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user"),
    pytest.mark.xdist_group("doctor_other_users"),
]

VISITOR = Path(__file__).with_name("visitor.py")
PROCESS = "this process is uid 65534 in the groups 65534"
OPEN = {"folder": 0o755, "socket": 0o600, "local": 0o600, "owner_group": 0, "group": 65534}
SITUATIONS = {
    "no rights": OPEN,
    "no rights to the memory": {**OPEN, "socket": 0o666},
    "the group of the sockets": {**OPEN, "socket": 0o660, "local": 0o660, "owner_group": 4242, "group": 4242},
    "no rights to the folder": {**OPEN, "folder": 0o700, "socket": 0o666},
}


@pytest.fixture(scope="module")
def visits(socket: Path) -> dict[str, dict[str, Any]]:
    """The reports of one process in all situations."""
    command = [sys.executable, str(VISITOR), str(socket), *map(json.dumps, SITUATIONS.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return dict(zip(SITUATIONS, map(json.loads, done.stdout.splitlines()), strict=True))


def check(visit: dict[str, Any], name: str) -> dict[str, str]:
    found: dict[str, str] = next(check for check in visit["checks"] if check["name"] == name)
    return found


def test_missing_rights_to_connect_are_a_problem(visits: dict[str, dict[str, Any]], socket: Path) -> None:
    visit = visits["no rights"]
    assert visit["code"] == 1
    assert check(visit, "server")["outcome"] == "problem"
    assert check(visit, "socket file")["outcome"] == "problem"
    assert check(visit, "socket file")["found"] == f"permission denied on {socket}: owner 0:0, mode 0600; {PROCESS}"
    assert "--socket-mode 0660" in check(visit, "socket file")["advice"]


def test_missing_rights_to_the_memory_are_the_reason_why_values_travel_over_grpc(
    visits: dict[str, dict[str, Any]], socket: Path
) -> None:
    visit = visits["no rights to the memory"]
    shared = check(visit, "shared memory")
    assert (visit["code"], check(visit, "socket file")["outcome"], shared["outcome"]) == (0, "ok", "warning")
    denied = f"permission denied on {socket}.local: owner 0:0, mode 0600; {PROCESS}"
    assert shared["found"] == f"values travel over gRPC: {denied}"
    assert "fsGroup" in shared["advice"]


def test_a_member_of_the_sockets_group_reaches_the_memory(visits: dict[str, dict[str, Any]], socket: Path) -> None:
    visit = visits["the group of the sockets"]
    assert visit["code"] == 0
    assert check(visit, "socket file")["found"] == f"{socket}: owner 0:4242, mode 0660"
    assert check(visit, "shared memory")["outcome"] == "ok"


def test_a_folder_that_may_not_be_searched_is_named(visits: dict[str, dict[str, Any]], socket: Path) -> None:
    visit = visits["no rights to the folder"]
    assert visit["code"] == 1
    assert f"no permission to search {socket.parent}" in check(visit, "socket file")["found"]
