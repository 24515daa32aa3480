"""Output of the commands: tables and JSON on stdout, errors on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 240
"""Columns of output that is piped when COLUMNS is not set, so that lines of tables are not folded."""


def fail(message: str, code: int = 1) -> NoReturn:
    """Print an error and exit with the code."""
    typer.echo(f"dataplane: {message}", err=True)
    raise typer.Exit(code) from None


def print_json(value: object, *, lines: bool = False) -> None:
    """Print a JSON document. lines: on one line, for JSON Lines."""
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(value, default=asdict, indent=None if lines else 2))


def plain_table(*headings: str) -> Table:
    """A table without lines. A heading that begins with ">" is right-aligned, for numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return table


def console() -> Console:
    """A console for stdout. It prints names as they are, without markup or emoji codes."""
    from rich.console import Console

    sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if sized else _WIDTH_WITHOUT_TERMINAL
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def print_text(*parts: RenderableType) -> None:
    out = console()
    for part in parts:
        out.print(part)
