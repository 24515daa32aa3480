"""Prometheus's text format for the series of partitions and tasks.

A server with a thousand partitions has some fifty thousand series, and writes them on the thread that serves calls. So
the text around the numbers is cached until partitions or tasks are added or dropped, and one formatting operation fills
in the numbers of a whole metric. Seconds are written to the millisecond, which takes half as long as in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.figures import Column, PartitionFigures, TaskFigures
from dataplane_server.observe.catalog import PARTITIONS, TASKS, MetricSpec

Series = Mapping[str, tuple[str, tuple[str, ...]]]
"""For each figure: its metric, and the values of the labels that follow the labels of its row."""

PARTITION_SERIES: Series = {
    "rows": ("dataplane_rows", ()),
    "size_bytes": ("dataplane_stored_bytes", ()),
    "oldest_row_age_s": ("dataplane_oldest_row_age_seconds", ()),
    "newest_weight_version": ("dataplane_newest_weight_version", ()),
    "open_groups": ("dataplane_open_groups", ()),
    "rows_put": ("dataplane_rows_put_total", ()),
    "removed_consumed": ("dataplane_rows_removed_total", ("consumed",)),
    "removed_cleared": ("dataplane_rows_removed_total", ("cleared",)),
    "removed_rolled_back": ("dataplane_rows_removed_total", ("rolled_back",)),
    "removed_retired": ("dataplane_rows_removed_total", ("retired",)),
    "removed_stale": ("dataplane_rows_removed_total", ("stale",)),
    "removed_filtered": ("dataplane_rows_removed_total", ("filtered",)),
    "removed_evicted": ("dataplane_rows_removed_total", ("evicted",)),
    "puts": ("dataplane_puts_total", ()),
    "put_rows": ("dataplane_put_rows_total", ()),
    "put_bytes": ("dataplane_put_bytes_total", ()),
    "deduplicated_bytes": ("dataplane_deduplicated_bytes_total", ()),
    "reads": ("dataplane_reads_total", ()),
    "read_rows": ("dataplane_read_rows_total", ()),
    "read_bytes": ("dataplane_read_bytes_total", ()),
    "clears": ("dataplane_clears_total", ()),
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
    "ended_committed": ("dataplane_row_deliveries_ended_total", ("committed",)),
    "ended_released": ("dataplane_row_deliveries_ended_total", ("released",)),
    "ended_expired": ("dataplane_row_deliveries_ended_total", ("expired",)),
    "ended_reset": ("dataplane_row_deliveries_ended_total", ("reset",)),
    "ended_cleared": ("dataplane_row_deliveries_ended_total", ("cleared",)),
    "ended_abandoned": ("dataplane_row_deliveries_ended_total", ("abandoned",)),
    "idle_s": ("dataplane_task_state_seconds_total", ("idle",)),
    "serving_s": ("dataplane_task_state_seconds_total", ("serving",)),
    "waiting_for_producers_s": ("dataplane_task_state_seconds_total", ("waiting_for_producers",)),
    "waiting_for_consumers_s": ("dataplane_task_state_seconds_total", ("waiting_for_consumers",)),
    "waiting_by_policy_s": ("dataplane_task_state_seconds_total", ("waiting_by_policy",)),
}


class Exposition:
    """Writes the series of the partitions and tasks of one core."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._shape: list[tuple[str, ...]] = []
        self._partitions, self._tasks = _tables(self._shape)

    def pieces(self, now: float) -> Iterator[bytes]:
        """The text, in pieces. All figures are computed before the first piece."""
        registered = self._plane.partitions
        shape = [(name, *partition.tasks) for name, partition in registered.items()]
        if shape != self._shape:
            self._shape = shape
            self._partitions, self._tasks = _tables(shape)
        partition_columns, task_columns = self._plane.columns(now)
        yield from self._partitions.pieces(partition_columns)
        yield from self._tasks.pieces(task_columns)


class _Table:
    """The text around the figures of partitions, or of tasks. rows: the labels of each partition or task."""

    def __init__(
        self,
        rows: Sequence[tuple[str, ...]],
        specs: Iterable[MetricSpec],
        series: Series,
        figures: type[PartitionFigures | TaskFigures],
    ) -> None:
        by_name = {spec.name: spec for spec in specs}
        self._columns: list[tuple[bytes, list[bytes], bytes]] = []  # the template is empty if figures may be None
        before = ""
        for field in figures._fields:
            name, more = series[field]
            spec = by_name[name]
            placeholder = "%.3f\n" if field.endswith("_s") else "%d\n"
            starts = [f"{name}{label_text(spec.labels, (*row, *more))} ".replace("%", "%%") for row in rows]
            lines = [(start + placeholder).encode() for start in starts]
            template = b"" if "None" in str(figures.__annotations__[field]) else b"".join(lines)
            self._columns.append((b"" if name == before else header_text(spec).encode(), lines, template))
            before = name

    def pieces(self, columns: Iterable[Column]) -> Iterator[bytes]:
        """The text of columns of figures. A figure that is None has no line."""
        for (header, lines, template), column in zip(self._columns, columns, strict=True):
            yield header
            if template:
                yield template % tuple(column)
            else:
                pairs = zip(lines, column, strict=True)
                yield b"".join([line % figure for line, figure in pairs if figure is not None])


def _tables(shape: Sequence[tuple[str, ...]]) -> tuple[_Table, _Table]:
    """The tables of partitions and of tasks. shape: the id of each partition, then the names of its tasks."""
    tasks = [(name, task) for name, *names in shape for task in names]
    return (
        _Table([(name,) for name, *_ in shape], PARTITIONS, PARTITION_SERIES, PartitionFigures),
        _Table(tasks, TASKS, TASK_SERIES, TaskFigures),
    )


def header_text(spec: MetricSpec) -> str:
    """The lines before the series of a metric."""
    return f"# HELP {spec.name} {spec.text}\n# TYPE {spec.name} {spec.kind}\n"


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels in braces, their values escaped; empty without labels."""
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{labels}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
