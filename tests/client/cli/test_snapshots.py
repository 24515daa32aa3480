"""`dataplane snapshot`, `restore` and `verify`, and checkpoints that name a snapshot."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import commands
from tests.client.cli.reading import DATAPLANE, run
from tests.integration.histories.mortal_server import MortalServer
from tests.waiting import eventually

from dataplane_client import ClaimNotFoundError, checkpoint_files, connect, observe
from dataplane_client.cli._server import Server
from dataplane_server.durability.snapshot import Manifest


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server whose partition p has row a. Its directory is `data`."""
    with MortalServer(tmp_path, tmp_path / "data", "--memory", "1MiB") as server:
        with connect(server.address) as client:
            client.register_partition("p", ["x"], 0, ["train"])
            client.put_samples(["a"], "p", {"x": torch.ones(1, 3000)})
        yield server.address


def test_the_server_goes_back_to_a_snapshot_and_open_claims_end(address: str) -> None:
    assert run("snapshot", "one", "-s", address) == (0, "snapshot one: 1 row, 11.7 KiB of values\n")
    with connect(address) as client:
        client.put_samples(["b"], "p", {"x": torch.ones(1, 3000)})
        held = client.claim("p", "train", ["x"], 1)
        code, text = run("restore", "one", "--yes", "-s", address)
        assert "It has 2 rows now. Its 1 session with 1 open claim and 0 waiting ones end." in text
        assert (code, "the server goes on from one, of 20" in text) == (0, True)
        assert client.list_samples("p").meta.sample_ids == ["a"]
        with pytest.raises(ClaimNotFoundError):
            held.commit()


def test_a_restore_ends_although_its_caller_was_busy_when_the_server_began_anew(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(observe.Observer):
        def ended(self, call: observe.Call) -> None:
            if call.verb == "RestoreSnapshot":
                time.sleep(3.0)

    def busy(server: Server, verb: str, request: Any) -> Any:
        answer = at_once(server, verb, request)
        if verb == "RestoreSnapshot":
            time.sleep(3.0)
        return answer

    at_once = Server.call
    monkeypatch.setattr(Server, "call", busy)
    with connect(address) as client:
        client.create_snapshot("one", timeout_s=600.0)
        observe.add(observer := Busy())
        try:
            assert client.restore_snapshot("one", timeout_s=200.0).rows == 1
        finally:
            observe.remove(observer)
    code, text = run("restore", "one", "--yes", "-s", address, "--timeout", "200")
    assert (code, "the server goes on from one" in text) == (0, True), text


def test_the_name_of_a_checkpoints_snapshot_is_on_disk_before_the_folder_is_complete(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    folder = tmp_path / "step-1"

    def sync(descriptor: int) -> None:
        at_once(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append((name, (folder / checkpoint_files.FILE).exists()))

    at_once = os.fsync
    monkeypatch.setattr(os, "fsync", sync)
    with connect(address, timeout_s=600.0) as client:
        checkpoint_files.save_checkpoint(client, folder, {"step": 1})
        assert checkpoint_files.load_checkpoint(client, folder) == {"step": 1}
        for changed in ({"step": {1: 2}}, {"step": [(1, 2)]}, {"step": {1}}):
            with pytest.raises(TypeError, match=r"metadata.*'step'|metadata.* set "):
                checkpoint_files.save_checkpoint(client, folder, changed)
    assert synced == [(".data_plane.json", False), ("step-1", True)]


@pytest.mark.parametrize(("answer", "code", "rows"), [(b"y\n", 0, 1), (b"n\n", 1, 2)], ids=["yes", "no"])
def test_restore_asks_on_a_terminal(address: str, answer: bytes, code: int, rows: int) -> None:
    run("snapshot", "one", "-s", address)
    ours, theirs = pty.openpty()
    with connect(address) as client, subprocess.Popen([DATAPLANE, "restore", "one", "-s", address], stdin=theirs) as it:
        client.put_samples(["b"], "p", {"x": torch.ones(1, 3000)})
        os.write(ours, answer)
        assert it.wait(300) == code
        assert client.server_status().rows == rows
    os.close(ours)
    os.close(theirs)


def test_what_cannot_be_done_is_said_and_changes_nothing(address: str) -> None:
    run("snapshot", "one", "-s", address)
    for words, code, said in (
        (["restore", "one"], 2, "--yes"),
        (["restore", "two", "--yes"], 1, "there is no snapshot 'two'"),
        (["restore", "two"], 1, "the last are: one"),
        (["snapshot", "one"], 1, "'one' already"),
        (["snapshot", "../one"], 1, "'../one'"),
    ):
        ended, text = run(*words, "-s", address)
        assert (ended, said in text) == (code, True), text
        assert "two" not in words or "lost" not in text, "a loss is told that cannot come"
    with connect(address) as client:
        assert client.server_status().rows == 1


def test_snapshots_are_listed_in_order(address: str) -> None:
    assert run("snapshots", "-s", address) == (0, "no snapshots\n")
    for name in ("two", "one"):
        run("snapshot", name, "-s", address)
    code, text = run("snapshots", "-s", address)
    assert (code, [line.split()[0] for line in text.splitlines()]) == (0, ["snapshot", "two", "one"])
    assert "11.7 KiB" in text
    with connect(address) as client:
        assert [(one.name, one.rows) for one in client.snapshots()] == [("two", 1), ("one", 1)]


def test_a_snapshot_is_verified_on_its_own(snapshot: Path, tmp_path: Path) -> None:
    done = commands.run([DATAPLANE, "verify", snapshot])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "snapshot one is as it was written: rows 1, bytes of values 12,000\n"
    for damaged in ("values", "state", "ranges"):
        copy = shutil.copytree(snapshot, tmp_path / damaged / "one")
        file = bytearray((copy / damaged).read_bytes())
        used = next(number for number, byte in enumerate(file) if byte) if damaged == "values" else len(file) // 2
        file[used] ^= 1
        (copy / damaged).write_bytes(file)
        done = commands.run([DATAPLANE, "verify", copy])
        assert (done.returncode, done.stdout) == (1, "")
        assert str(copy / damaged) in done.stderr


@pytest.fixture
def snapshot(address: str, tmp_path: Path) -> Path:
    """The folder of a snapshot."""
    run("snapshot", "one", "-s", address)
    return tmp_path / "data" / "snapshots" / "one"


def running(folder: Path) -> list[Path]:
    """The processes whose command names a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(process)
    return found


def reads(process: Path, file: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(opened.readlink() == file for opened in (process / "fd").iterdir())
    return False


def test_a_verification_ends_with_its_command(snapshot: Path) -> None:
    manifest = json.loads((snapshot / "manifest.json").read_text())
    manifest["sizes"]["state"] = 1 << 40  # which takes minutes to read
    manifest["manifest"] = Manifest(**manifest).checksum
    (snapshot / "manifest.json").write_text(json.dumps(manifest))
    os.truncate(snapshot / "state", 1 << 40)
    with subprocess.Popen([DATAPLANE, "verify", str(snapshot)]) as command:
        eventually(lambda: any(reads(process, snapshot / "state") for process in running(snapshot)))
        command.kill()
        command.wait(60)
        eventually(lambda: not running(snapshot))
