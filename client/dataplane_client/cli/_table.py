"""Tables without lines, as a terminal and a text file show them alike."""

from __future__ import annotations

from rich.table import Table


def plain_table(*headings: str) -> Table:
    """A table with these columns; a heading that begins with ">" is of numbers, which end below each other."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return table
