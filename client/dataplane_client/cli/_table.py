"""Tables and labelled lines that fit the screen that shows them.

No cell is broken over two lines. On a narrow screen a table leaves out its spare columns and says which, then cuts its
longest names. Only sentences are folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from dataplane_client.cli._text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_GAP = "  "
_SHORTEST_NAME = 8
_SHORTEST_SENTENCE = 24


class Labelled:
    """A label and the text after it, which is folded where the screen is narrow. style: of the label."""

    def __init__(self, label: str, text: str, *, style: str = "", indent: int = 4) -> None:
        self._label, self._text = printable(label), printable(text)
        self._style, self._indent = style, " " * indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        first, *rest = _folded(console, self._label + self._text, options.max_width, self._indent)
        yield Text.assemble((first[: len(self._label)], self._style), first[len(self._label) :])
        yield from map(Text, rest)


def figure(label: str, text: str) -> Labelled:
    """One of the lines, with texts under each other, that tell of a server or a partition."""
    return Labelled(f"  {label:10}", text, indent=12)


class Table:
    """Rows of cells under headings, two spaces apart.

    headings: one that begins with ">" is right-aligned, for numbers; one with a line break has two lines on a narrow
    screen. spare: headings, as one line and without ">", of columns that a narrow screen leaves out, in this order.
    sentences: the last column has sentences.
    """

    def __init__(self, *headings: str, spare: Sequence[str] = (), sentences: bool = False) -> None:
        self._headings = [heading.removeprefix(">").split("\n") for heading in headings]
        self._names = [" ".join(lines) for lines in self._headings]
        self._right = [heading.startswith(">") for heading in headings]
        self._spare = [self._names.index(name) for name in spare]
        self._folded = len(headings) - 1 if sentences else None
        self._lines: list[Labelled | tuple[Sequence[str], str]] = []

    def add_row(self, *cells: str, style: str = "") -> None:
        """style: of the first cell."""
        self._lines.append(([printable(cell) for cell in cells], style))

    def add_line(self, label: str, text: str) -> None:
        """Add a line across all columns, which heads the rows after it."""
        self._lines.append(Labelled(label, text, style="bold"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Labelled]:
        headings = [[name] for name in self._names]
        if _total(self._natural_widths(headings)) > options.max_width:
            headings = self._headings
        widths = self._fitted_widths(headings, options.max_width)
        height = max(map(len, headings))
        for cells in zip(*([""] * (height - len(lines)) + lines for lines in headings), strict=True):
            yield from self._row_lines(console, cells, "", widths, "bold")
        for line in self._lines:
            if isinstance(line, Labelled):
                yield line
            else:
                yield from self._row_lines(console, *line, widths)
        left_out = ", ".join(name for column, name in enumerate(self._names) if column not in widths)
        if left_out:
            yield Labelled("not shown on this narrow screen: ", left_out)

    def _fitted_widths(self, headings: Sequence[Sequence[str]], screen: int) -> Mapping[int, int]:
        """The widths of the columns that are shown."""
        widths = self._natural_widths(headings)
        for column in self._spare:
            if _total(widths) > screen:
                del widths[column]
        names = {column for column in widths if not self._right[column] and column != self._folded}
        while names and _total(widths) > screen:
            widest = max(names, key=widths.__getitem__)
            if widths[widest] <= _SHORTEST_NAME:
                break
            widths[widest] -= 1
        if self._folded is not None:
            widths[self._folded] += max(0, screen - _total(widths))
        return widths

    def _natural_widths(self, headings: Sequence[Sequence[str]]) -> dict[int, int]:
        """The widths that names and numbers need. Sentences need little, because they are folded."""
        rows = [line[0] for line in self._lines if not isinstance(line, Labelled)]
        widths = {}
        for column, lines in enumerate(headings):
            width = max(map(cell_len, [*lines, *(cells[column] for cells in rows)]))
            widths[column] = min(width, _SHORTEST_SENTENCE) if column == self._folded else width
        return widths

    def _row_lines(
        self, console: Console, cells: Sequence[str], style: str, widths: Mapping[int, int], heading: str = ""
    ) -> Iterator[Text]:
        from rich.text import Text

        shown = [self._padded(cell, column, widths[column]) for column, cell in enumerate(cells) if column in widths]
        more: Sequence[str] = ()
        if self._folded is not None:
            shown[-1], *more = _folded(console, cells[-1], widths[self._folded])
        first, rest = shown[0], _GAP.join(["", *shown[1:]])
        yield Text.assemble((first, style), rest.rstrip(), style=heading, no_wrap=True, overflow="ellipsis")
        indent = _GAP.join([" " * cell_len(cell) for cell in shown[:-1]] + [""])
        yield from (Text(indent + line) for line in more)

    def _padded(self, cell: str, column: int, width: int) -> str:
        if cell_len(cell) > width:
            return set_cell_size(cell, width - 1) + "…"
        blank = " " * (width - cell_len(cell))
        return blank + cell if self._right[column] else cell + blank


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _folded(console: Console, text: str, width: int, indent: str = "") -> list[str]:
    """The lines of a text. It is measured in cells, of which a Chinese character takes two."""
    from rich.text import Text

    first = Text(text).wrap(console, width)[0].plain
    rest = Text(text[len(first) :].lstrip())
    more = rest.wrap(console, max(1, width - len(indent))) if rest else ()
    return [first.rstrip(), *(indent + line.plain.rstrip() for line in more)]
