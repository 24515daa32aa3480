"""How objects show themselves: short texts for `repr`, and small HTML tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

HTML_ROWS = 20
"""The most rows of a table; a caption tells how many there are."""


def short_list(names: Iterable[str], width: int) -> str:
    """Names with commas, as many as fit into `width` characters, on one line."""
    text = ", ".join(name if name.isprintable() else repr(name) for name in names)
    if len(text) <= width:
        return text
    shown = text[: width - 2].rpartition(", ")[0]
    return f"{shown}, …" if shown else f"{text[: width - 1]}…"


def html_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table. Every text is escaped: names come from other processes."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    lines = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>"
