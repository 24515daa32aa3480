"""`dataplane top` on real servers: rates, lost servers, terminals, and Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.client.cli.reading import read, run

from dataplane_client import connect
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread

DATAPLANE = str(Path(sys.executable).parent / "dataplane")


def test_without_a_terminal_screens_follow_each_other_as_plain_text(address: str) -> None:
    code, text = run("top", "-s", address, "-n", "2", "-i", "0.1")
    assert code == 0
    head = [
        f"{address}  up ~  memory [....................]  0 % of 64.0 MiB  2 rows",
        "waiting: 0 claims, 0 puts",
        "",
        "partition  rows  size  oldest  rows/s in  MB/s in  MB/s out  "
        "task  ready  claimed  committed  rows/s  lag  waiting  longest",
    ]
    first = ["train  2  64 B  ~  -  -  -  prev_lp  -  0  0  -  1  0  -", "    train  1  1  0  -  0  0  -"]
    second = ["train  2  64 B  ~  0  0  0  prev_lp  -  0  0  0  1  0  -", "    train  1  1  0  0  0  0  -"]
    empty = [["val  0  0 B  -  -  -  -", ""], ["val  0  0 B  -  0  0  0", ""]]
    assert read(text) == [*head, *first, *empty[0], *head, *second, *empty[1]]


def test_an_unreachable_server_is_reported_on_every_screen() -> None:
    code, text = run("top", "-s", "unix:///nowhere/dataplane.sock", "-n", "2", "-i", "0.1")
    assert code == 0
    assert text.count("unix:///nowhere/dataplane.sock  not reachable, retrying\n") == 2


@contextmanager
def watching(address: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process that prints a line of JSON ten times a second.

    SIGINT has its default action in the process. A shell starts background jobs with SIGINT ignored, and a child
    inherits an ignored signal, but not a handler.
    """
    command = [DATAPLANE, "top", "-s", address, "-i", "0.1", "-o", "json"]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    with process:
        try:
            yield process
        finally:
            process.kill()


def seen(process: subprocess.Popen[str], *, reachable: bool) -> dict[str, Any]:
    """The next line in which the server is reachable, or not."""
    assert process.stdout is not None
    for line in process.stdout:
        document: dict[str, Any] = json.loads(line)
        if document["reachable"] is reachable:
            return document
    raise AssertionError("the command ended")


def test_a_server_is_watched_across_a_restart_until_ctrl_c(tmp_path: Path) -> None:
    config = ServerConfig(listen=(f"unix://{tmp_path}/dataplane.sock",))
    server = ServerThread(config)
    with connect(server.addresses[0], transport="grpc") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        with watching(server.addresses[0]) as process:
            assert seen(process, reachable=True)["partitions"][0]["put_rows_per_s"] is None
            client.put_samples([str(row) for row in range(10)], "p", {"x": torch.zeros(10, 250)})
            moved = seen(process, reachable=True)["partitions"][0]
            while not moved["put_rows_per_s"]:
                moved = seen(process, reachable=True)["partitions"][0]
            assert moved["written_bytes_per_s"] == pytest.approx(1000 * moved["put_rows_per_s"])
            assert moved["partition"]["rows"] == 10
            server.stop()
            silent = seen(process, reachable=False)
            assert silent["silent_s"] >= 0
            assert str(tmp_path) in silent["error"]
            server = ServerThread(config)
            client.register_partition("p", ["x"], 0, ["train"])
            assert seen(process, reachable=True)["server"]["rows"] == 0
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert (process.wait(30), process.stderr.read()) == (0, "")
    server.stop()


def test_on_a_terminal_screens_replace_each_other_and_the_former_contents_come_back(address: str) -> None:
    terminal, screen = pty.openpty()
    command = [DATAPLANE, "top", "-s", address, "-n", "2", "-i", "0.1"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen(command, stdout=screen, env=environment) as process:
        os.close(screen)
        shown = _all_of(terminal)
    assert process.returncode == 0
    assert shown.startswith("\x1b[?1049h")
    assert shown.count("committed") == 2
    assert "\x1b[?1049l" in shown[shown.rindex("committed") :]


def _all_of(terminal: int) -> str:
    """All output until the other end closes the terminal, which reads as an error."""
    shown = b""
    try:
        while data := os.read(terminal, 1 << 16):
            shown += data
    except OSError:
        pass
    finally:
        os.close(terminal)
    return shown.decode()
