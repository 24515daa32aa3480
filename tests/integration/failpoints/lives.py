"""The lives of a server on a data directory, one after the other, for tests that end them as they like."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import commands
from tests.integration.failpoints.failpoint import Failpoint, Watch

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


def errors_in(log: str) -> list[str]:
    """The lines of a server's log that tell of an error, or begin a stack."""
    return [line for line in log.splitlines() if '"level": "error"' in line or "Traceback" in line]


class Lives:
    """Lives with the same flags on the directory `data`. A context manager that kills the one that runs.

    settings: of ServerConfig and of Terms, that no flag has.
    """

    def __init__(self, folder: Path, data: Path, *flags: str, **settings: int) -> None:
        self.address = f"unix://{folder}/s"
        self._process: commands.Forked | None = None
        self._command = ["dataplane-server", "--listen", self.address, "--http", "", "--data-dir", str(data), *flags]
        self._log = folder / "server.log"
        self._data = data
        self._settings = settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end()

    @property
    def log(self) -> str:
        """Of all lives."""
        return self._log.read_text() if self._log.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in map(json.loads, self.log.splitlines()) if entry["event"] == name]

    def begin(self, *flags: str, failpoint: Failpoint | None = None) -> int | None:
        """Begin a life. None once it serves; its exit code if it ends before."""
        point = None if failpoint is None else dataclasses.astuple(failpoint)
        prepare: tuple[Any, ...] = ()
        if point or self._settings:
            prepare = (__name__, _prepare.__name__, self._settings, str(self._data), point)
        with self._log.open("a") as log:
            self._process = commands.begin(
                [*self._command, *flags], stdout=subprocess.PIPE, stderr=log, text=True, prepare=prepare
            )
        assert self._process.stdout is not None
        return None if self._process.stdout.readline() else self.ended()

    def ended(self) -> int:
        """Wait until the life ends; its exit code."""
        assert self._process is not None
        with self._process as process:
            self._process = None
        return process.wait()

    def end(self, by: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal and wait until the life ends; its exit code."""
        assert self._process is not None
        self._process.send_signal(by)
        return self.ended()

    def kill(self) -> None:
        self.end()


def _prepare(name: str, settings: dict[str, int], data: str, point: list[Any] | None) -> None:
    """In the server and in its checkpointer, before they begin."""
    from dataplane_server import cli
    from dataplane_server.service import lives

    for module, kind in ((cli, "ServerConfig"), (lives, "Terms")):
        setattr(module, kind, _with_settings(getattr(module, kind), settings))
    role = "checkpointer" if name.endswith("checkpointer") else "server"
    if point is not None and point[0] == role:
        Watch(Path(data), Failpoint(*point)).begin()


def _with_settings(kind: Any, settings: dict[str, int]) -> Any:
    """A dataclass with other defaults."""
    fields = [(field.name, field.type, settings.get(field.name)) for field in dataclasses.fields(kind)]
    fields = [field for field in fields if field[-1] is not None]
    return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)
