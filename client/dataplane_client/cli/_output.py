"""Output of the commands: tables and JSON on stdout, errors on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, NoReturn

import typer

from dataplane_client.cli._text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Format = Literal["table", "json"]
_WIDTH_WITHOUT_TERMINAL = 240
"""Columns of output that is piped when COLUMNS is not set, so that lines of tables are not folded."""


def fail(message: str, code: int = 1) -> NoReturn:
    """Print an error and exit with the code."""
    typer.echo(f"dataplane: {printable(message)}", err=True)
    raise typer.Exit(code) from None


def confirm(question: str, command: str) -> None:
    """Ask before what cannot be undone. Ends the command unless the answer is yes."""
    if not sys.stdin.isatty():
        fail(f"{command} needs --yes where no one can be asked", 2)
    typer.confirm(question, abort=True)


def print_json(value: object, *, lines: bool = False) -> None:
    """Print a JSON document. lines: on one line, for JSON Lines."""
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(value, default=asdict, indent=None if lines else 2))


GOOD, WARNING, BAD = "green", "yellow", "bold red"
"""Colours of outcomes. Names and headings are bold. rich leaves out colours where NO_COLOR is set, and all styles where
the output is not a terminal.
"""


def console() -> Console:
    """A console for stdout. It prints names as they are, without markup or emoji codes."""
    from rich.console import Console

    sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if sized else _WIDTH_WITHOUT_TERMINAL
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def show(output: Format, document: object, *parts: RenderableType) -> None:
    """Print the document as JSON, or the parts as text."""
    if output == "json":
        print_json(document)
    else:
        print_text(*parts)


def print_text(*parts: RenderableType) -> None:
    out = console()
    for part in parts:
        out.print(printable(part) if isinstance(part, str) else part)
