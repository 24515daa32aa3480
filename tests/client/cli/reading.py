"""Run the command `dataplane` in this process, for speed, and normalize what it prints."""

from __future__ import annotations

import json
import re
from typing import Any

from typer.testing import CliRunner

from dataplane_client.cli._app import app

_WIDE = {"COLUMNS": "200", "TERM": "dumb"}


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code, and the output on stdout and stderr."""
    result = CliRunner().invoke(app, list(arguments), env={**_WIDE, **environment}, prog_name="dataplane")
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
