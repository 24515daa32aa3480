"""Processes as a container runtime starts them: a user, groups and namespaces of their own, a volume at its mount.

They are forked, since an interpreter may lie where only root can read it: whatever they import, they import before they
become somebody else.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.forked import forking

MOUNT = Path("/run/dataplane")
ADDRESS = f"unix://{MOUNT}/dataplane.sock"

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x20000, 0x08000000, 0x40000000
_MS_BIND, _MS_PRIVATE_RECURSIVE = 0x1000, 0x44000
_ENOUGH_S = 300.0


@dataclass(frozen=True)
class Container:
    """A container with `volume` mounted at /run/dataplane, as a security context has it.

    fs_group: the pod's, a supplementary group of each of its containers; None for a container that lacks it.
    own_network: of a pod of its own, so that abstract sockets of others are out of sight.
    """

    volume: Path
    user: int
    group: int
    fs_group: int | None
    own_network: bool = False

    def enter(self) -> None:
        """Become that process."""
        libc = ctypes.CDLL(None, use_errno=True)

        def done(result: int) -> None:
            if result != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

        done(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWIPC | _CLONE_NEWNET if self.own_network else 0)))
        done(libc.mount(None, b"/", None, _MS_PRIVATE_RECURSIVE, None))
        done(libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, b"mode=0755"))
        MOUNT.mkdir()
        done(libc.mount(bytes(self.volume), bytes(MOUNT), None, _MS_BIND, None))
        os.umask(0o022)
        os.setgroups([] if self.fs_group is None else [self.fs_group])
        os.setgid(self.group)
        os.setuid(self.user)

    def of(self, user: int, group: int) -> Container:
        """Another one of the same pod."""
        return replace(self, user=user, group=group)

    def run(self, function: Callable[..., object], *arguments: object) -> Any:
        """What a function returns there. Raises AssertionError with the name and text of what it raised."""
        ours, theirs = forking().Pipe()
        with ours, theirs:
            process = forking().Process(target=_answer, args=(self, function, arguments, theirs))
            process.start()
            theirs.close()
            assert ours.poll(_ENOUGH_S), "no answer"
            answer, error = ours.recv()
            process.join(_ENOUGH_S)
            process.close()
        assert error is None, error
        return answer


class ServerContainer:
    """The command `dataplane-server` in a container, which listens in the volume."""

    def __init__(self, container: Container, log: Path, *flags: str) -> None:
        self._log = log
        arguments = ["--listen", ADDRESS, "--http", "", "--memory", "64MiB", *flags]
        self.process: BaseProcess = forking().Process(target=_serve, args=(container, log, arguments))
        self.process.start()

    def started(self) -> ServerContainer:
        """When it serves. Raises AssertionError with its log when it ends instead."""
        deadline = time.monotonic() + _ENOUGH_S
        while '"event": "serving"' not in self.log:
            assert self.process.is_alive(), self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.005)
        return self

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def end(self) -> int | None:
        """Tell it to end, if it has not yet; its exit code."""
        self.process.terminate()
        self.process.join(_ENOUGH_S)
        return self.process.exitcode


def _serve(container: Container, log: Path, arguments: list[str]) -> None:
    from dataplane_server.cli import main

    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    container.enter()
    sys.argv = ["dataplane-server", *arguments]
    main()


def _answer(
    container: Container, function: Callable[..., object], arguments: tuple[object, ...], answer: Connection
) -> None:
    try:
        container.enter()
        answer.send((function(*arguments), None))
    except BaseException as error:  # noqa: BLE001  # whatever it is, the caller looks at it
        answer.send((None, f"{type(error).__name__}: {error}"))
