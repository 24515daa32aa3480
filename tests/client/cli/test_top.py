"""`dataplane top` on real servers: rates, lost servers, terminals, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.client.cli.reading import DATAPLANE, read, run, shown_on_terminal

from dataplane_client import connect
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread


def test_without_a_terminal_screens_follow_each_other_as_plain_text(address: str) -> None:
    code, text = run("top", "-s", address, "-n", "2", "-i", "0.1")
    assert code == 0
    head = [
        f"{address}: up ~",
        "  memory  [....................]  0 % of 64.0 MiB, 2 rows",
        "  waiting  0 claims, 0 puts",
        "",
        "task  ready  claimed  rows/s  rows/s in last minute  versions behind  claims waiting  longest wait",
    ]
    screens = [
        [
            f"train  2 rows, 64 B, oldest ~; in {rate} rows/s, {rate} MB/s; out 0 MB/s",
            "  prev_lp  -  0  0  0  1  0  -",
            "  train  1  1  0  0  0  0  -",
            "val  0 rows, 0 B; in 0 rows/s, 0 MB/s; out 0 MB/s",
            "",
        ]
        for rate in "~0"
    ]
    of_last_minute = r"(<0\.01|\d+\.\d+|[1-9]\d*)(?= rows/s| MB/s)"
    assert read(text, of_last_minute) == [*head, *screens[0], *head, *screens[1]]


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
            assert seen(process, reachable=True)["partitions"][0]["put_rows_per_s"] == 0
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
            assert (process.wait(300), process.stderr.read()) == (0, "")
    server.stop()


def test_a_number_of_screens_ends_with_1_if_no_server_answers_on_the_last(tmp_path: Path) -> None:
    code, text = run("top", "-n", "1", "-s", f"unix://{tmp_path}/dataplane.sock")
    assert (code, "not reachable" in text) == (1, True)


def test_on_a_terminal_screens_replace_each_other_and_the_last_one_stays(address: str) -> None:
    shown = shown_on_terminal("top", "-s", address, "-n", "2", "-i", "0.1")
    assert shown.startswith("\x1b[?1049h")
    during, after = shown.split("\x1b[?1049l")
    assert during.count("claimed") == 2
    assert after.count("claimed") == 1
    assert "prev_lp" in after
