"""What a command says and where: tables and JSON on stdout, failures on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDTH_OF_NO_TERMINAL = 240
"""Columns where nobody has said how many there are: lines of a table that is piped somewhere are not folded."""


def fail(message: str, code: int = 1) -> NoReturn:
    """End the command."""
    typer.echo(f"dataplane: {message}", err=True)
    raise typer.Exit(code) from None


def print_json(value: object, *, lines: bool = False) -> None:
    """lines: as one line, for a document of which more are to come."""
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(value, default=asdict, indent=None if lines else 2))


def console() -> Console:
    """Where tables go. What users have named is shown as it is, never read as markup or as the name of an emoji."""
    from rich.console import Console

    sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if sized else _WIDTH_OF_NO_TERMINAL
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def print_text(*parts: RenderableType) -> None:
    out = console()
    for part in parts:
        out.print(part)
