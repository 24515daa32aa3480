"""A server has a checkpointer at all times, and ends in order whatever its checkpointer does."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import commands
from tests.server.durability.test_life import REGISTER, begin, put
from tests.waiting import eventually, soon

from dataplane_client import DeadlineError, PreconditionError, connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.requests import ClearSamples
from dataplane_server.durability.checkpointer import Checkpointer
from dataplane_server.durability.replica import Replica
from dataplane_server.durability.snapshot import Manifest, write_snapshot
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service import server
from dataplane_server.service.shell import Shell
from dataplane_server.service.snapshots import Snapshots
from dataplane_server.storage.folders import locked
from dataplane_server.testing import ServerThread


def checkpointers_of(folder: Path) -> list[int]:
    """Process ids."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _checkpoints(path, folder)]


def _checkpoints(command: Path, folder: Path) -> bool:
    try:
        words = command.read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    return b"dataplane_server.durability.checkpointer" in words and str(folder).encode() in words


def checkpointer_of(folder: Path) -> int:
    eventually(lambda: checkpointers_of(folder))  # it may be about to become one
    (process,) = checkpointers_of(folder)
    return process


def has_signal(process: int, which: str, number: signal.Signals) -> bool:
    """Whether a signal is among those of /proc/*/status: ShdPnd, which wait for a stopped process; SigCgt, caught."""
    (line,) = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if which in line]
    return bool(int(line.split()[1], 16) >> number - 1 & 1)


def is_stopped(process: int) -> bool:
    """Whether SIGSTOP has reached a process."""
    return "State:\tT" in Path(f"/proc/{process}/status").read_text()


def has_open(process: int, path: Path) -> bool:
    """Whether a process has a file open. No if it closes another one at this moment: ask again."""
    with contextlib.suppress(FileNotFoundError):
        return path in [file.resolve() for file in Path(f"/proc/{process}/fd").iterdir()]
    return False


def test_a_checkpointer_that_could_not_be_started_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, program = tmp_path / "d", sys.executable
    monkeypatch.setattr(server, "_CHECKPOINTER_S", 0.1)
    thread = ServerThread(ServerConfig((f"unix://{tmp_path}/s",), limits=Limits(memory_bytes=1 << 20), data_dir=folder))
    first = checkpointer_of(folder)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    os.kill(first, signal.SIGKILL)
    time.sleep(1.0)  # it is tried again and again
    with connect(thread.addresses[0]) as client, pytest.raises(PreconditionError, match="has ended"):
        client.create_snapshot("a")
    assert checkpointers_of(folder) == []
    monkeypatch.setattr(sys, "executable", program)
    eventually(lambda: checkpointers_of(folder))
    with connect(thread.addresses[0]) as client:
        assert client.create_snapshot("a", timeout_s=600.0).name == "a"
    thread.stop()


def test_a_snapshot_is_of_its_own_call_although_another_of_its_name_was_begun_before(tmp_path: Path) -> None:
    """A life that is killed while it takes a snapshot is followed by one of which the client asks for it again."""
    life = begin(tmp_path / "d")
    life.plane.apply(REGISTER, life.now())
    put(life.plane, "s1", 100)
    checkpointer = Checkpointer(tmp_path / "d", 1000, 0)
    life.plane.apply(checkpointer.order("a", tmp_path / "lost", "r"), life.now())
    checkpointer.close()
    life.arena.close()
    life = begin(tmp_path / "d")
    life.plane.apply(ClearSamples("c", "p", None), life.now())
    for name in ("s2", "s3"):
        put(life.plane, name, 100)
    checkpointer = Checkpointer(tmp_path / "d", 1000, 0)
    life.plane.apply(checkpointer.order("a", tmp_path / "snapshots", "r"), life.now())
    assert checkpointer.answer()["rows"] == {"p": 2}
    checkpointer.close()
    life.arena.close()


def test_a_snapshot_whose_server_ends_while_it_is_written_is_not_kept(tmp_path: Path) -> None:
    """The next life of the server frees what it needs, and may put other values there."""
    life, folder = begin(tmp_path / "d"), tmp_path / "snapshots"
    folder.mkdir()
    checkpointer = Checkpointer(tmp_path / "d", 1000, 0)
    process, ending = checkpointer_of(tmp_path / "d"), threading.Thread(target=checkpointer.close)
    with locked(folder / ".lock", fcntl.LOCK_EX):  # for which it waits before it writes
        life.plane.apply(checkpointer.order("a", folder, "r"), life.now())
        eventually(lambda: has_open(process, folder / ".lock"))
        os.kill(process, signal.SIGSTOP)
        eventually(lambda: is_stopped(process))  # or it would take the next signal before this one
        ending.start()
        eventually(lambda: has_signal(process, "ShdPnd", signal.SIGTERM))
    os.kill(process, signal.SIGCONT)
    ending.join()
    assert [path.name for path in folder.iterdir()] == [".lock"]
    life.arena.close()


async def test_a_snapshot_that_is_asked_for_again_while_it_is_taken_is_taken_once(tmp_path: Path) -> None:
    """As by a client whose connection broke meanwhile."""
    life, checkpointer = begin(tmp_path / "d"), Checkpointer(tmp_path / "d", 1000, 0)
    shell = Shell(life.plane, Metrics(life.plane, lambda: True), life.now)
    kept = Snapshots(shell, life, checkpointer, tmp_path / "snapshots")
    asked = [kept.create(name, request_id) for name, request_id in (("a", "r"), ("a", "r"), ("a", "r2"), ("b", "r"))]
    first, again, *others = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, Manifest)
    assert again == first
    assert [str(other) for other in others] == ["another snapshot is being taken; there can be one at a time"] * 2
    checkpointer.close()
    life.arena.close()


async def test_a_snapshot_that_has_its_name_is_not_told_of_before_it_is_complete(tmp_path: Path) -> None:
    """The checkpointer removes it if the folder cannot be synced."""
    life, checkpointer, folder = begin(tmp_path / "d"), Checkpointer(tmp_path / "d", 1000, 0), tmp_path / "snapshots"
    kept = Snapshots(Shell(life.plane, Metrics(life.plane, lambda: True), life.now), life, checkpointer, folder)
    process = checkpointer_of(tmp_path / "d")
    os.kill(process, signal.SIGSTOP)
    await soon(lambda: is_stopped(process))
    first = asyncio.create_task(kept.create("a", "r"))
    await asyncio.sleep(0)
    named = write_snapshot(folder, "a", "r", Replica(life.folder), life.folder / "arena")
    again = asyncio.create_task(kept.create("a", "r"))
    await asyncio.sleep(0)
    shutil.rmtree(folder / "a")
    os.kill(process, signal.SIGCONT)
    taken, told = await asyncio.wait_for(asyncio.gather(first, again), 200)
    assert (told, told == named) == (taken, False)
    checkpointer.close()
    life.arena.close()


def words_of(folder: Path, kind: str) -> list[str]:
    return ["dataplane_server", "--listen", f"unix://{folder}/s", "--http=", "--memory=1MiB", f"{kind}={folder}/d"]


@contextlib.contextmanager
def server_of(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a session of its own, which serves on the socket `s` of a folder and writes its log there."""
    command = [sys.executable, "-m", *words_of(folder, "--data-dir")]
    with (
        (folder / "log").open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True) as process,
    ):
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_ctrl_c_ends_a_server_without_a_traceback_of_its_checkpointer(tmp_path: Path) -> None:
    with server_of(tmp_path) as process:
        checkpointer = checkpointer_of(tmp_path / "d")
        eventually(lambda: has_signal(checkpointer, "SigCgt", signal.SIGINT))  # it runs Python
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(300) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_server_stops_in_order_while_a_snapshot_is_written_that_nobody_waits_for(tmp_path: Path) -> None:
    with server_of(tmp_path) as process:
        checkpointer = checkpointer_of(tmp_path / "d")
        os.kill(checkpointer, signal.SIGSTOP)
        with connect(f"unix://{tmp_path}/s") as client:
            client.register_partition("p", ["x"], 0, ["t"])
            with pytest.raises(DeadlineError):
                client.create_snapshot("a", timeout_s=0.5)
        process.terminate()
        eventually(lambda: has_signal(checkpointer, "ShdPnd", signal.SIGTERM))  # the log is closed
        os.kill(checkpointer, signal.SIGCONT)
        assert process.wait(300) == 0, (tmp_path / "log").read_text()
    assert '"level": "error"' not in (tmp_path / "log").read_text()


def test_a_server_that_restores_a_snapshot_stands_by_if_its_standby_comes_first(tmp_path: Path) -> None:
    log, words = tmp_path / "standby.log", ["dataplane-server", *words_of(tmp_path, "--standby")[1:]]
    with (
        server_of(tmp_path) as process,
        log.open("w") as stderr,
        commands.begin(words, stdout=subprocess.PIPE, stderr=stderr) as standby,
    ):
        eventually(lambda: '"standing_by"' in log.read_text())
        checkpointer = checkpointer_of(tmp_path / "d")
        with connect(f"unix://{tmp_path}/s") as client:
            client.create_snapshot("a", timeout_s=600.0)
            os.kill(checkpointer, signal.SIGSTOP)  # its server waits for it before it begins the next life
            client.restore_snapshot("a", timeout_s=600.0)
        os.kill(checkpointer, signal.SIGCONT)
        eventually(lambda: '"standing_by"' in (tmp_path / "log").read_text() or process.poll() is not None)
        standby.kill()
        assert process.stdout is not None
        assert b"serving" in process.stdout.readline(), (tmp_path / "log").read_text()
