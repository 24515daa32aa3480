"""The statements of a source. `ast.walk` visits every name and number, too, and takes ten times as long."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(source: str) -> Iterator[ast.AST]:
    """Each of them, those within others included."""
    return _within(ast.parse(source).body)


def _within(block: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for statement in block:
        yield statement
        for name in _BLOCKS:
            yield from _within(getattr(statement, name, ()))
