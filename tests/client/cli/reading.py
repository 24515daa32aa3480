"""Run the command `dataplane`, in this process or on a terminal, and normalize what it prints."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from pathlib import Path
from typing import Any

from tests import commands
from typer.main import get_group
from typer.testing import CliRunner

from dataplane_client.cli._app import app

DATAPLANE = str(Path(sys.executable).parent / "dataplane")
_WIDE = {"COLUMNS": "200", "TERM": "dumb"}
_PATIENT = {command: {"timeout": 120.0} for command in get_group(app).commands}
"""A machine with much other work may take longer for an answer than commands wait."""


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code, and the output on stdout and stderr."""
    settings = {**_WIDE, **environment}
    result = CliRunner().invoke(app, arguments, env=settings, prog_name="dataplane", default_map=_PATIENT)
    return result.exit_code, result.output


def run_json(*arguments: str, code: int = 0) -> Any:
    ended, text = run(*arguments, "-o", "json")
    assert ended == code, text
    return json.loads(text)


def read(text: str, *masked: str) -> list[str]:
    """The lines with columns two spaces apart. Times, and what matches one of the patterns, become "~".

    Empty cells at the beginning of a line become four spaces.
    """
    for pattern in (r"\d+ h \d+ min", r"\d+ min \d+ s", r"\d+\.\d+ s\b", r"\b\d+ s\b", r"\d+\.\d ms", *masked):
        text = re.sub(pattern, "~", text)
    text = re.sub(r"^ {5,}", "    ", text, flags=re.MULTILINE)
    return [re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() for line in text.splitlines()]


def shown_on_terminal(*arguments: str, **environment: str) -> str:
    """All that the command writes to a terminal of 160 columns and 40 lines."""
    terminal, screen = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40", **environment}
    with commands.begin([DATAPLANE, *arguments], stdout=screen, env=settings) as process:
        os.close(screen)
        shown = _all_of(terminal)
    assert process.returncode == 0
    return shown


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
