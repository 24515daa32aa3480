"""Rights of the socket files: as asked from their first moment on, the memory's socket included."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

IN_ATTRIB, IN_CREATE = 0x4, 0x100


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def server_at(path: Path, mode: int | None) -> ServerThread:
    limits = Limits(memory_bytes=1 << 20)
    return ServerThread(ServerConfig(listen=(f"unix://{path}", "127.0.0.1:0"), socket_mode=mode, limits=limits))


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


class Watcher:
    """Counts what happens to the files of a folder."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self._descriptor, bytes(folder), IN_ATTRIB | IN_CREATE) >= 0

    def events(self) -> list[int]:
        """The kinds of the events so far, in their order."""
        data, kinds = os.read(self._descriptor, 1 << 16), []
        os.close(self._descriptor)
        while data:
            kinds.append(int.from_bytes(data[4:8], "little"))
            data = data[16 + int.from_bytes(data[12:16], "little") :]
        return kinds


@pytest.mark.parametrize("mode", [None, 0o600, 0o660, 0o666, 0o777], ids=str)
def test_socket_files_come_into_being_with_the_rights_asked_for(tmp_path: Path, umask: int, mode: int | None) -> None:
    """Without a mode the umask decides."""
    watcher = Watcher(tmp_path)
    server = server_at(tmp_path / "a.sock", mode)
    assert modes(tmp_path) == dict.fromkeys(["a.sock", "a.sock.local"], 0o777 & ~umask if mode is None else mode)
    assert watcher.events() == [IN_CREATE, IN_CREATE]  # nobody has changed them, so they never were others
    (tmp_path / "other").touch()
    assert modes(tmp_path)["other"] == 0o666 & ~umask
    server.stop()


def test_the_umask_is_as_before_also_when_the_socket_cannot_be_had(tmp_path: Path, umask: int) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(OSError, match="cannot listen on"):
        server_at(tmp_path / "taken", 0o660)
    (tmp_path / "other").touch()
    assert modes(tmp_path)["other"] == 0o666 & ~umask


def test_files_that_a_killed_server_left_are_replaced_rights_included(tmp_path: Path) -> None:
    killed = server_at(tmp_path / "a.sock", 0o777)
    for name in ("a.sock", "a.sock.local"):
        os.link(tmp_path / name, tmp_path / f"{name}.kept")
    killed.stop()
    for name in ("a.sock", "a.sock.local"):
        (tmp_path / f"{name}.kept").rename(tmp_path / name)
    server = server_at(tmp_path / "a.sock", 0o660)
    assert modes(tmp_path) == {"a.sock": 0o660, "a.sock.local": 0o660}
    with grpc.insecure_channel(f"unix://{tmp_path}/a.sock") as channel:
        grpc.channel_ready_future(channel).result(200)
    server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to groups that it is not in")
def test_socket_files_get_the_group_of_a_folder_that_hands_its_group_on(tmp_path: Path) -> None:
    os.chown(tmp_path, 0, 2000)
    tmp_path.chmod(0o2770)
    server = server_at(tmp_path / "a.sock", 0o660)
    assert {path.stat().st_gid for path in tmp_path.iterdir()} == {2000}
    server.stop()
