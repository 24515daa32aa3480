"""The start of the command, which loads little because each command is a new process, and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
from importlib import import_module
from importlib.metadata import files, requires, version
from pathlib import Path

import pytest
from tests.client.cli.reading import run

COMMANDS = "status top describe samples sample claims sessions dead-letters reset doctor replay snapshot restore verify"
COMMANDS += " bench export import"
OURS = ("rl_dataplane", "dataplane_client", "dataplane_server")
DATAPLANE = str(Path(sys.executable).parent / "dataplane")


def loaded_by(*arguments: str) -> set[str]:
    """The modules that the command loaded, from Python's import times."""
    command = [sys.executable, "-X", "importtime", DATAPLANE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], "grpc google.protobuf rich.console subprocess numpy msgpack pydantic torch"),
        (["status"], "asyncio.events grpc.aio._channel google.protobuf.text_format numpy msgpack pydantic torch"),
        (["status", "-o", "json"], "rich.console asyncio.events numpy msgpack pydantic torch tensordict"),
        (["doctor", "-o", "json"], "rich.console asyncio.events msgpack pydantic torch tensordict dataplane_server"),
    ],
    ids=["help", "status", "status-json", "doctor-json"],
)
def test_a_command_loads_only_what_it_needs(address: str, arguments: list[str], unwanted: str) -> None:
    server = [] if arguments == ["--help"] else ["-s", address]
    loaded = loaded_by(*arguments, *server)
    assert "dataplane_client.cli" in loaded
    assert not loaded & set(unwanted.split())


def test_a_deferred_module_is_loaded_when_it_is_used_and_a_loaded_one_is_not_deferred() -> None:
    code = """
import json, os, sys
from dataplane_client.cli._start import defer_imports
defer_imports(["asyncio", "json"])
assert sys.modules["json"] is json
import asyncio
assert "asyncio.events" not in sys.modules
for use in (
    "asyncio.run(asyncio.sleep(0))",
    "from asyncio import run; run(asyncio.sleep(0))",
    "import asyncio.events; asyncio.events.new_event_loop().close()",
):
    if (child := os.fork()) == 0:  # each finds the module unused
        exec(use)
        os._exit("asyncio.events" not in sys.modules)
    assert os.waitpid(child, 0)[1] == 0, use
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        (["--version"], 0, f"dataplane {version('rl-dataplane')}\n"),
        (["status", "-s", "unix:///nowhere/dataplane.sock"], 1, ""),
        (["describe", "\udcff"], 2, ""),
    ],
    ids=["answered", "no-server", "not-utf-8"],
)
def test_a_process_exits_with_the_code_of_its_command_after_writing_all_output(
    arguments: list[str], code: int, printed: str
) -> None:
    done = subprocess.run([DATAPLANE, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code
    assert done.stdout.startswith(printed)
    assert done.stderr.count("\n") == (code > 0)


def test_a_command_whose_output_is_on_a_full_disk_says_so() -> None:
    with Path("/dev/full").open("w") as full:
        command = [DATAPLANE, "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (1, "dataplane: stdout: No space left on device\n")


def test_ctrl_c_ends_a_command_that_is_being_loaded_without_words() -> None:
    """A library that is being imported may lose the exception, and the command would go on."""
    code = """
import builtins, os, signal, sys
from dataplane_client.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
original = builtins.__import__
def interrupted(name, *rest):
    if name == "torch":
        os.kill(os.getpid(), signal.SIGINT)
    return original(name, *rest)
builtins.__import__ = interrupted
sys.argv = ["dataplane", "peek", "p"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(("command", "code"), [("replay", 130), ("verify", -signal.SIGINT)])
def test_ctrl_c_ends_a_command_whose_program_is_being_loaded_without_words(
    tmp_path: Path, command: str, code: int
) -> None:
    interrupt = 'import os, signal, sys\nif "dataplane_server" in str(sys.orig_argv): os.killpg(0, signal.SIGINT)'
    (tmp_path / "sitecustomize.py").write_text(interrupt)
    paths = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child inherits an ignored signal
    with subprocess.Popen(
        [DATAPLANE, command, str(tmp_path)], env=paths, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        signal.signal(signal.SIGINT, handler)
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(60)) == ("", code)


@pytest.fixture(scope="module")
def python_of_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter whose environment is this one without the packages of the extra `server`."""
    folder = tmp_path_factory.mktemp("clients")
    venv.create(folder)
    here, there = (Path(sysconfig.get_path("purelib", vars=paths)) for paths in ({}, {"base": str(folder)}))
    of_server = [line for line in requires("rl-dataplane") or () if line.endswith("extra == 'server'")]
    names = [re.split("[<>=;]", line)[0].strip() for line in of_server]
    left_out = {file.parts[0] for name in names for file in files(name) or ()}
    assert "prometheus_client" in left_out
    for path in [*here.iterdir(), *(Path(root) for name in OURS for root in import_module(name).__path__)]:
        if path.name not in left_out and not (there / path.name).exists():
            (there / path.name).symlink_to(path)
    return folder / "bin" / "python"


def test_the_server_says_what_to_install_where_only_clients_are_installed(python_of_clients: Path) -> None:
    script = Path(sys.executable).parent / "dataplane-server"
    done = subprocess.run([python_of_clients, script], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"dataplane-server needs the server's packages \(No module named '\w+'\): "
        r"pip install 'rl-dataplane\[server\]'\n",
        done.stderr,
    )


@pytest.mark.parametrize("command", ["replay", "verify"])
def test_what_a_data_directory_holds_is_read_where_only_clients_are_installed(
    python_of_clients: Path, tmp_path: Path, command: str
) -> None:
    arguments = [str(python_of_clients), DATAPLANE, command, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr.startswith(f"dataplane: {'there is no' if command == 'verify' else tmp_path}")


def test_every_command_has_a_short_and_a_long_flag_for_help() -> None:
    for command in ("", *COMMANDS.split()):
        short, long = (run(*command.split(), flag, COLUMNS="80") for flag in ("-h", "--help"))
        assert short == long
        assert short[1].startswith(f"Usage: dataplane {command}".rstrip())
        assert max(map(len, short[1].splitlines())) <= 80
        assert "..." not in short[1].replace("[ARGS]...", "").replace("[SAMPLE...]", "").replace("SAMPLE...", "")
