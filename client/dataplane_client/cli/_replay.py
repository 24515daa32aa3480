"""`dataplane replay`: calls of a former or running server, applied again, and the screens of a moment.

The server's package replays, in a process of its own. For a screen it serves the state of the moment on a socket, and
the screen's command runs against that.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import typer

from dataplane_client.cli._interrupts import catch_interrupts
from dataplane_client.cli._output import Format
from dataplane_client.cli._text import REPLAY_FOLDER

_NO_SCREENS = ("bench", "doctor", "replay")
_SIGNALLED = 128
"""A shell's exit code for a process that a signal ended, less the signal."""


def replay_calls(
    path: str, until: str | None, sample_id: str | None, most: int | None, check: bool, output: Format
) -> int:
    """Print the calls, at most the last `most`, or the result of the check. Returns the exit code."""
    flags = [
        *_option("--sample", sample_id),
        *_option("--limit", None if most is None else str(most)),
        *(["--check"] if check else []),
        *(["--json"] if output == "json" else []),
    ]
    catch_interrupts()
    with _begin(path, until, *flags) as process:
        code = process.wait()
    return code if code >= 0 else _SIGNALLED - code


def replay_screen(
    commands: Callable[..., object], path: str, until: str | None, screen: Sequence[str], output: Format
) -> None:
    """Run the command of a screen against a server that shows a moment. commands: runs a command by its arguments."""
    if screen[0] in _NO_SCREENS:
        raise typer.BadParameter(f"{screen[0]!r} shows no state of a server; see dataplane --help for commands that do")
    catch_interrupts()
    with (
        tempfile.TemporaryDirectory(prefix=REPLAY_FOLDER) as folder,
        _begin(path, until, "--serve-in", folder, pipe=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None  # noqa: S101  # for the type checker
        if not (address := process.stdout.readline().decode().strip()):
            raise typer.Exit(process.wait())
        once = ["--count", "1"] if screen[0] == "top" else []  # time stands still
        chosen = ["--output", output] if output != "table" else []
        commands([*screen, *once, *chosen, "--server", address], prog_name="dataplane")


def _begin(path: str, until: str | None, *flags: str, pipe: int | None = None) -> subprocess.Popen[bytes]:
    """Start the module. It gets Ctrl-C once it is loaded: until then, Python would show a stack."""
    command = [sys.executable, "-m", "dataplane_server.replaying", path, *_option("--until", until), *flags]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe)  # noqa: S603  # our own module
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _option(flag: str, value: str | None) -> list[str]:
    return [] if value is None else [f"{flag}={value}"]
