"""Prometheus's text format for the series of partitions and tasks, in pieces.

A server with a thousand partitions may have a million series, and writes them on the thread that serves calls. So a
scrape is many short steps, and calls are served between them: first the figures of a few partitions at a time, then the
lines of one metric for the same partitions. A partition's figures are of one moment, those of two partitions need not
be. One formatting operation fills in the numbers of a piece. Seconds are written to the millisecond, which takes half
as long as in full. Only figures are kept between scrapes: the text around a million numbers would be a gigabyte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.stats.figures import Column, partition_columns, task_columns
from dataplane_server.observe.catalog import PARTITIONS, TASKS, WAITS, MetricSpec

_TOGETHER = 32
"""Partitions and tasks whose figures are computed in one step."""


class Exposition:
    """Writes the series of the partitions and tasks of one core."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._lines = list(_lines(PARTITIONS))
        self._task_lines = list(_lines(TASKS))

    def pieces(self, now: float) -> Iterator[bytes]:
        """The text, in pieces; some are empty. Partitions may come and go between two of them."""
        parts: list[_Part] = []
        for partitions in _groups(list(self._plane.partitions.values())):
            parts.append(_part([p for p in partitions if self._plane.partitions.get(p.partition_id) is p], now))
            yield b""
        for line in self._lines:
            yield from line.pieces((part.names, part.columns[line.figure]) for part in parts)
        for line in self._task_lines:
            yield from line.pieces((part.task_names, part.task_columns[line.figure]) for part in parts)
        yield from self._waits(now)

    def _waits(self, now: float) -> Iterator[bytes]:
        """The calls that wait, by cause. Each piece looks at one wait."""
        calls = Counter[tuple[str, str, str]]()
        for partition_id, task, cause, count in self._plane.waiting_causes(now):
            calls[partition_id, task, cause] += count
            yield b""
        lines = [f"{WAITS.name}{label_text(WAITS.labels, labels)} {count}\n" for labels, count in calls.items()]
        yield "".join([header_text(WAITS), *lines]).encode()


class _Part(NamedTuple):
    """Figures of some partitions, and of their tasks: the labels of each, and a column for each figure."""

    names: list[str]
    columns: dict[str, Column]
    task_names: list[str]
    task_columns: dict[str, Column]


def _groups(partitions: Sequence[Partition]) -> Iterator[list[Partition]]:
    """The partitions, in batches that each take a short step."""
    group: list[Partition] = []
    size = 0
    for partition in partitions:
        group.append(partition)
        size += 1 + len(partition.tasks)
        if size >= _TOGETHER:
            yield group
            group, size = [], 0
    yield group


def _part(partitions: Sequence[Partition], now: float) -> _Part:
    return _Part(
        [_labels(("partition",), (p.partition_id,)) for p in partitions],
        partition_columns(partitions, now),
        [_labels(("partition", "task"), (p.partition_id, task)) for p in partitions for task in p.tasks],
        task_columns(partitions, now),
    )


class _Line:
    """The lines of one figure. header: before the first of them. more: the labels after those of the row."""

    def __init__(self, spec: MetricSpec, figure: str, more: str, header: str) -> None:
        self.figure = figure
        self._header = header.encode()
        self._before = f"{spec.name}{{"
        self._after = f"{more}}} {'%.3f' if figure.endswith('_s') else '%d'}\n"

    def pieces(self, parts: Iterable[tuple[list[str], Column]]) -> Iterator[bytes]:
        """The text for rows with these labels. A figure that is None has no line."""
        yield self._header
        for names, figures in parts:
            if None in figures:
                names = [name for name, figure in zip(names, figures, strict=True) if figure is not None]
                figures = [figure for figure in figures if figure is not None]
            if names:
                template = f"{self._after}{self._before}".join(names)
                yield (f"{self._before}{template}{self._after}" % tuple(figures)).encode()


def _lines(specs: Iterable[MetricSpec]) -> Iterator[_Line]:
    """The lines of all figures. Those of one metric are neighbours."""
    for spec in specs:
        header = header_text(spec)
        if isinstance(spec.figures, str):
            yield _Line(spec, spec.figures, "", header)
            continue
        for value, figure in spec.figures.items():
            yield _Line(spec, figure, f",{_labels(spec.labels[-1:], [value])}", header)
            header = ""


def header_text(spec: MetricSpec) -> str:
    """The lines before the series of a metric."""
    return f"# HELP {spec.name} {spec.text}\n# TYPE {spec.name} {spec.kind}\n"


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels in braces, their values escaped; empty without labels."""
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{labels}}}" if labels else ""


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    """As label_text, without braces, for a template."""
    return label_text(names, values)[1:-1].replace("%", "%%")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
