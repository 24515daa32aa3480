"""Prometheus's text format for the series of partitions and tasks, in pieces.

A server with a thousand partitions may have a million series, and writes them on the thread that serves calls. So a
scrape is many short steps, and calls are served between them: first the figures of a few partitions at a time, then the
lines of one metric for the same partitions. A partition's figures are of one moment, those of two partitions need not
be. One formatting operation fills in the numbers of a piece. Seconds are written to the millisecond, which takes half
as long as in full. Only figures are kept between scrapes: the text around a million numbers would be a gigabyte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.stats.figures import Column, PartitionFigures, TaskFigures, partition_columns, task_columns
from dataplane_server.observe.catalog import PARTITIONS, TASKS, WAITS, MetricSpec

_TOGETHER = 32
"""Partitions and tasks whose figures are computed in one step."""

Series = Mapping[str, tuple[str, tuple[str, ...]]]
"""For each figure: its metric, and the values of the labels that follow the labels of its row."""

PARTITION_SERIES: Series = {
    "rows": ("dataplane_rows", ()),
    "size_bytes": ("dataplane_stored_bytes", ()),
    "oldest_row_age_s": ("dataplane_oldest_row_age_seconds", ()),
    "newest_weight_version": ("dataplane_newest_weight_version", ()),
    "weight_version": ("dataplane_weight_version", ()),
    "open_groups": ("dataplane_open_groups", ()),
    "rows_put": ("dataplane_rows_put_total", ()),
    "removed_consumed": ("dataplane_rows_removed_total", ("consumed",)),
    "removed_cleared": ("dataplane_rows_removed_total", ("cleared",)),
    "removed_rolled_back": ("dataplane_rows_removed_total", ("rolled_back",)),
    "removed_retired": ("dataplane_rows_removed_total", ("retired",)),
    "removed_stale": ("dataplane_rows_removed_total", ("stale",)),
    "removed_filtered": ("dataplane_rows_removed_total", ("filtered",)),
    "removed_lost": ("dataplane_rows_removed_total", ("lost",)),
    "removed_failed": ("dataplane_rows_removed_total", ("failed",)),
    "removed_evicted": ("dataplane_rows_removed_total", ("evicted",)),
    "puts": ("dataplane_puts_total", ()),
    "put_rows": ("dataplane_put_rows_total", ()),
    "put_bytes": ("dataplane_put_bytes_total", ()),
    "deduplicated_bytes": ("dataplane_deduplicated_bytes_total", ()),
    "reads": ("dataplane_reads_total", ()),
    "read_rows": ("dataplane_read_rows_total", ()),
    "read_bytes": ("dataplane_read_bytes_total", ()),
    "clears": ("dataplane_clears_total", ()),
    "groups_committed": ("dataplane_groups_ended_total", ("committed",)),
    "groups_partial": ("dataplane_groups_ended_total", ("partial",)),
    "groups_aborted": ("dataplane_groups_ended_total", ("aborted",)),
    "groups_late": ("dataplane_groups_ended_total", ("late",)),
}
TASK_SERIES: Series = {
    "untaken": ("dataplane_task_rows", ("untaken",)),
    "claimed": ("dataplane_task_rows", ("claimed",)),
    "consumed": ("dataplane_task_rows", ("consumed",)),
    "delayed": ("dataplane_task_rows", ("delayed",)),
    "dead": ("dataplane_task_rows", ("dead",)),
    "ready": ("dataplane_task_ready_rows", ()),
    "oldest_untaken_age_s": ("dataplane_task_oldest_untaken_age_seconds", ()),
    "weight_version_lag": ("dataplane_task_weight_version_lag", ()),
    "waiting_claims": ("dataplane_task_waiting_claims", ()),
    "longest_wait_s": ("dataplane_task_longest_wait_seconds", ()),
    "claims": ("dataplane_claims_total", ()),
    "claim_wait_s": ("dataplane_task_claim_wait_seconds_total", ()),
    "commits": ("dataplane_commits_total", ()),
    "commit_bytes": ("dataplane_commit_bytes_total", ()),
    "rows_consumed": ("dataplane_rows_consumed_total", ()),
    "deliveries": ("dataplane_row_deliveries_total", ()),
    "versioned": ("dataplane_row_deliveries_versioned_total", ()),
    "versions_behind": ("dataplane_row_deliveries_versions_behind_total", ()),
    "ended_committed": ("dataplane_row_deliveries_ended_total", ("committed",)),
    "ended_released": ("dataplane_row_deliveries_ended_total", ("released",)),
    "ended_expired": ("dataplane_row_deliveries_ended_total", ("expired",)),
    "ended_reset": ("dataplane_row_deliveries_ended_total", ("reset",)),
    "ended_cleared": ("dataplane_row_deliveries_ended_total", ("cleared",)),
    "ended_abandoned": ("dataplane_row_deliveries_ended_total", ("abandoned",)),
    "idle_s": ("dataplane_task_state_seconds_total", ("idle",)),
    "serving_s": ("dataplane_task_state_seconds_total", ("serving",)),
    "waiting_s": ("dataplane_task_state_seconds_total", ("waiting",)),
    "waiting_for_consumers_s": ("dataplane_task_state_seconds_total", ("waiting_for_consumers",)),
}


class Exposition:
    """Writes the series of the partitions and tasks of one core."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._lines = list(_lines(PARTITIONS, PARTITION_SERIES, PartitionFigures))
        self._task_lines = list(_lines(TASKS, TASK_SERIES, TaskFigures))

    def pieces(self, now: float) -> Iterator[bytes]:
        """The text, in pieces; some are empty. Partitions may come and go between two of them."""
        parts: list[_Part] = []
        for partitions in _groups(list(self._plane.partitions.values())):
            parts.append(_part([p for p in partitions if self._plane.partitions.get(p.partition_id) is p], now))
            yield b""
        for number, line in enumerate(self._lines):
            yield from line.pieces((part.names, part.columns[number]) for part in parts)
        for number, line in enumerate(self._task_lines):
            yield from line.pieces((part.task_names, part.task_columns[number]) for part in parts)
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
    columns: list[Column]
    task_names: list[str]
    task_columns: list[Column]


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

    def __init__(self, spec: MetricSpec, more: str, header: str, placeholder: str, *, optional: bool) -> None:
        self._header = header.encode()
        self._before = f"{spec.name}{{"
        self._after = f"{more}}} {placeholder}\n"
        self._optional = optional

    def pieces(self, parts: Iterable[tuple[list[str], Column]]) -> Iterator[bytes]:
        """The text for rows with these labels. A figure that is None has no line."""
        yield self._header
        for names, figures in parts:
            if self._optional and None in figures:
                names = [name for name, figure in zip(names, figures, strict=True) if figure is not None]
                figures = [figure for figure in figures if figure is not None]
            if names:
                template = f"{self._after}{self._before}".join(names)
                yield (f"{self._before}{template}{self._after}" % tuple(figures)).encode()


def _lines(
    specs: Iterable[MetricSpec], series: Series, figures: type[PartitionFigures | TaskFigures]
) -> Iterator[_Line]:
    """The lines of all figures, in their order. Those of one metric are neighbours."""
    by_name = {spec.name: spec for spec in specs}
    before = ""
    for field in figures._fields:
        name, more = series[field]
        spec = by_name[name]
        after = f",{_labels(spec.labels[-len(more) :], more)}" if more else ""
        header = "" if name == before else header_text(spec)
        placeholder = "%.3f" if field.endswith("_s") else "%d"
        yield _Line(spec, after, header, placeholder, optional="None" in str(figures.__annotations__[field]))
        before = name


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
