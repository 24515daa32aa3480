"""How tests read the command `dataplane`: in this process for speed, as text without what changes from run to run."""

from __future__ import annotations

import json
import re
from typing import Any

from typer.testing import CliRunner

from dataplane_client.cli._app import app

_WIDE = {"COLUMNS": "200", "TERM": "dumb"}


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code, and what was printed to stdout and stderr."""
    result = CliRunner().invoke(app, list(arguments), env={**_WIDE, **environment}, prog_name="dataplane")
    return result.exit_code, result.output


def run_json(*arguments: str, code: int = 0) -> Any:
    ended, text = run(*arguments, "-o", "json")
    assert ended == code, text
    return json.loads(text)


def read(text: str, *masked: str) -> list[str]:
    """The lines as they are read: columns two spaces apart, times as "~", and so what matches one of the patterns. The
    cells that a line leaves empty at its beginning are four spaces.
    """
    for pattern in (r"\d+ h \d+ min", r"\d+ min \d+ s", r"\d+\.\d+ s\b", r"\b\d+ s\b", r"\d+\.\d ms", *masked):
        text = re.sub(pattern, "~", text)
    text = re.sub(r"^ {5,}", "    ", text, flags=re.MULTILINE)
    return [re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() for line in text.splitlines()]
