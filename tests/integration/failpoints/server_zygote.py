"""Starts servers within milliseconds: `python -m tests.integration.failpoints.server_zygote`.

It has imported the server and opened nothing. For each line of JSON on its input, a Life as a list, it forks a server,
says the server's process id, and, once that has ended, its exit code.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.failpoints.failpoint import Failpoint, Watch

from dataplane_server import cli
from dataplane_server.durability import checkpointer
from dataplane_server.service import lives

_PR_SET_PDEATHSIG = 1


class Life(NamedTuple):
    """arguments: of `dataplane-server`. log: the file for its standard error. settings: of ServerConfig and of Terms
    that no flag has. failpoint: the fields of one, or None.
    """

    arguments: list[str]
    log: str
    data: str
    settings: dict[str, int]
    failpoint: list[Any] | None

    def live(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
        for module, name in ((cli, "ServerConfig"), (lives, "Terms")):
            setattr(module, name, self._with_settings(getattr(module, name)))
        for name, waiting in {"Popen": _ForkedCheckpointer(self)}.items():
            setattr(subprocess, name, waiting.start)
        self.be("server", cli.main, self.arguments)

    def be(self, role: str, main: Callable[[], None], arguments: Sequence[str]) -> None:
        """Be a process of this life. Does not return."""
        status: object = 1
        sys.argv[1:] = arguments
        try:
            if self.failpoint is not None and self.failpoint[0] == role:
                Watch(Path(self.data), Failpoint(*self.failpoint)).begin()
            main()
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:  # noqa: BLE001  # as Python ends
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status if isinstance(status, int) else 1)

    def _with_settings(self, kind: Any) -> Any:
        """A dataclass with other defaults."""
        fields = [(field.name, field.type, self.settings.get(field.name)) for field in dataclasses.fields(kind)]
        fields = [field for field in fields if field[-1] is not None]
        return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)


class _ForkedCheckpointer:
    """What `subprocess.Popen` is to a server. The process was forked before the server had threads, and waits."""

    def __init__(self, life: Life) -> None:
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(writing)
            os.dup2(reading, 0)
            with os.fdopen(os.dup(0), "rb", 0) as commands:
                line = commands.readline()
            if not line:  # the server ended before it had a checkpointer
                os._exit(0)
            life.be("checkpointer", checkpointer.main, json.loads(line))
        os.close(reading)
        self.stdin, self.stdout = os.fdopen(writing, "w"), None

    def start(self, command: Sequence[str], **_: object) -> _ForkedCheckpointer:
        place = command.index("dataplane_server.durability.checkpointer")
        self.stdin.write(json.dumps(command[place + 1 :]) + "\n")
        self.stdin.flush()
        return self

    def wait(self) -> int:
        return os.waitpid(self._pid, 0)[1]


def _say(**facts: int) -> None:
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for described in sys.stdin:
        forked = os.fork()
        if forked == 0:
            Life(*json.loads(described)).live()
        _say(pid=forked)
        _say(code=os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
