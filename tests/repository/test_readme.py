"""What the README shows runs, and what it points at exists."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["first", "claims"])
def test_the_examples_of_the_readme_run_as_they_stand(example: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_deployment_of_the_readme_goes_word_by_word_on_another_folder_and_other_ports(tmp_path: Path) -> None:
    (steps,) = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
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
    for words in ("shared memory", "serving, healthy", "dataplane_serving 1"):
        assert words in said
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["server.log"]


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:tests|docs|proto|examples|benchmarks|deploy)/[^`\s]+)`", README)))
)
def test_every_file_that_the_readme_names_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z-]+)", README))))
def test_every_make_target_that_the_readme_names_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
