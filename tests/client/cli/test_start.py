"""What the command loads: little, since it is started anew for every look at a server."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from tests.client.cli.reading import run

CODE = """
import sys
from dataplane_client.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, *sorted(set(sys.modules) & set({modules!r})), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], "grpc google.protobuf rich.console numpy msgpack pydantic torch"),
        (["status"], "numpy msgpack pydantic torch tensordict"),
        (["status", "-o", "json"], "rich.console numpy msgpack pydantic torch tensordict"),
        (["doctor", "-o", "json"], "rich.console msgpack pydantic torch tensordict dataplane_server"),
    ],
    ids=["help", "status", "status-json", "doctor-json"],
)
def test_a_command_loads_only_what_it_needs(address: str, arguments: list[str], unwanted: str) -> None:
    code = CODE.format(modules=unwanted.split())
    server = [] if arguments == ["--help"] else ["-s", address]
    command = [sys.executable, "-c", code, *arguments, *server]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "0\n"
    assert done.stdout


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version") == (0, f"dataplane {version('rl-dataplane')}\n")


def test_help_names_the_exit_codes_of_status() -> None:
    code, text = run("status", "--help")
    assert code == 0
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line[:1].isdigit()][:3] == [
        "0  healthy",
        "1  cannot be reached",
        "2  wrong usage",
    ]
