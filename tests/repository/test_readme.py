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


def test_each_example_is_followed_by_what_it_prints() -> None:
    assert len(EXAMPLES) == README.count("```python")


@pytest.mark.long  # `make dist` runs it, too
def test_what_the_readme_shows_goes_word_by_word_on_another_folder_and_other_ports(tmp_path: Path) -> None:
    """In one shell: the server, the programs, and the deployment while the first server runs."""
    first = f"{TERMINAL.strip()} --http 127.0.0.1:9464 > /tmp/dataplane.log 2>&1 &\n"
    programs = [f"python -W error - <<'PROGRAM'\n{example}PROGRAM\n" for example, _ in EXAMPLES]
    steps = "\n".join([first, *programs, DEPLOYMENT])
    with contextlib.ExitStack() as stack:
        for port in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", steps))):
            steps = steps.replace(port, str(stack.enter_context(kept_port())))
        done = in_bash(steps.replace("/tmp", str(tmp_path)))  # noqa: S108  # the README's
    assert done.returncode == 0, done.stdout
    assert [printed for _, printed in EXAMPLES if printed not in done.stdout] == []
    assert "failed to connect" not in done.stdout
    for words in ("consumed: {", "shared memory", "serving, healthy", "dataplane_serving 1"):
        assert words in done.stdout
    assert [file.name for file in (tmp_path / "dataplane").iterdir()] == ["server.log"]


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """A free port, which a server may take meanwhile, and others are not given."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def in_bash(steps: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-e", "-u", "-o", "pipefail", "-c", steps]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path, "COLUMNS": "160"},
        start_new_session=True,
    ) as shell:
        try:
            said, _ = shell.communicate(timeout=400)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the servers that it has not ended
                os.killpg(shell.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, shell.returncode, said)


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets
