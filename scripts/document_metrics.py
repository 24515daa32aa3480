"""Generate docs/metrics.md from the server's table of metrics: `python scripts/document_metrics.py [--check]`.

--check writes nothing and exits with 1 if the file differs from the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from dataplane_server.observe.catalog import CALLS, PARTITIONS, SERVER, TASKS, WAITS, MetricSpec

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

_HEAD = """\
# Metrics

`scripts/document_metrics.py` generates this page from `dataplane_server/observe/catalog.py`; `make test` compares them.
`docs/observability.md` lists the metrics of clients.

The server answers `GET /metrics` on `--http` (127.0.0.1:9464 by default). It also exports the usual metrics of its
process (`process_*`) and interpreter (`python_*`). Times are in seconds, sizes in bytes. Counters start at 0 with the
server, but for those of partitions, tasks and sessions with `--data-dir`: they go on after a restart (those of reads
may go back), and go back when a snapshot is restored. Prometheus takes a counter that went back for one that began at
0, so for a few minutes rates are too high, and alerts on them may fire. Label values that callers choose are the ids of
partitions and the names of tasks that are registered: at most 1,024 partitions of at most 64 tasks.
"""


def main() -> None:
    page = text()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        sys.exit("docs/metrics.md is stale: run scripts/document_metrics.py")


def text() -> str:
    """The page."""
    return "\n".join(
        [
            _HEAD,
            *_section("The server", "Read at the scrape.", SERVER),
            *_section("Calls", "Counted as calls end, over gRPC and through shared memory (`shm`) alike.", CALLS),
            *_section("Partitions", "One series for each partition, removed when it is dropped.", PARTITIONS),
            *_section("Tasks", "One series for each task of a partition.", TASKS),
            *_section("Waits", "One series for each partition, task and cause for which calls wait.", [WAITS]),
        ]
    )


def _section(title: str, law: str, specs: Iterable[MetricSpec]) -> list[str]:
    rows = [f"| `{spec.name}` | {spec.kind} | {_labels(spec)} | {spec.text}{_buckets(spec)} |" for spec in specs]
    return [f"## {title}\n", f"{law}\n", "| metric | kind | labels | meaning |\n|---|---|---|---|", *rows, ""]


def _labels(spec: MetricSpec) -> str:
    return ", ".join(f"`{label}`" for label in spec.labels)


def _buckets(spec: MetricSpec) -> str:
    return f" Buckets: {', '.join(f'{bound:g}' for bound in spec.buckets)} s." if spec.buckets else ""


if __name__ == "__main__":
    main()
