"""What the README shows runs and prints what it says, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", README, flags=re.DOTALL)
TERMINAL, DEPLOYMENT = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
SOCKET = "/tmp/dataplane.sock"  # noqa: S108  # the README's


@pytest.fixture(scope="module")
def socket_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of the server that the README starts in a terminal."""
    file = tmp_path_factory.mktemp("readme") / "dataplane.sock"
    words = TERMINAL.replace(SOCKET, str(file)).split()
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:], "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert f"unix://{file}" in server.stdout.readline()  # it serves
            yield file
        finally:
            server.terminate()


def test_each_example_is_followed_by_what_it_prints() -> None:
    assert len(EXAMPLES) == README.count("```python")


@pytest.mark.parametrize(("example", "printed"), EXAMPLES, ids=["first", "groups"])
def test_the_examples_of_the_readme_print_what_it_says(example: str, printed: str, socket_file: Path) -> None:
    code = example.replace(SOCKET, str(socket_file))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


def test_the_deployment_of_the_readme_goes_word_by_word_on_another_folder_and_other_ports(tmp_path: Path) -> None:
    steps = DEPLOYMENT
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [str(one.getsockname()[1]) for one in sockets]
    told = ("/tmp/dataplane", "9464", "50052")  # noqa: S108  # the README's
    for there, here in zip(told, (str(tmp_path / "run"), *ports), strict=True):
        steps = steps.replace(there, here)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", steps],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path, "COLUMNS": "160"},
        start_new_session=True,
    ) as shell:
        try:
            said, _ = shell.communicate(timeout=90)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the server, where a step before the last one failed
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, said
    assert "failed to connect" not in said
    for words in ("shared memory", "serving, healthy", "dataplane_serving 1"):
        assert words in said
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["server.log"]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z-]+)", README))))
def test_every_make_target_that_the_readme_names_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
