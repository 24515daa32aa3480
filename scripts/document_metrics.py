"""docs/metrics.md out of the table from which the server makes its metrics.

With --check nothing is written: the exit code tells whether the file says what the code does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from dataplane_server.observe.catalog import CALLS, PARTITIONS, SERVER, TASKS, MetricSpec

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

_HEAD = """\
# Metrics

Made by `scripts/document_metrics.py` from `dataplane_server/observe/catalog.py`; `make test` compares. What clients
count is in `docs/observability.md`.

The server answers `GET /metrics` on `--http` (127.0.0.1:9464 by default). Beside what follows it exports the usual
figures of its process (`process_*`) and its interpreter (`python_*`). Times are in seconds, sizes in bytes; counters
begin at 0 with the server's life. Label values that callers choose are the ids of partitions and the names of tasks
that are registered: at most 1,024 partitions of at most 64 tasks.
"""


def main() -> None:
    page = text()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        sys.exit("docs/metrics.md is not what the code says: run scripts/document_metrics.py")


def text() -> str:
    """The page."""
    return "\n".join(
        [
            _HEAD,
            *_section("The server", "Read when it is scraped.", SERVER),
            *_section("Calls", "Counted as calls end, over gRPC and through shared memory (`shm`) alike.", CALLS),
            *_section("Partitions", "One series for each partition; they go when it is dropped.", PARTITIONS),
            *_section("Tasks", "One series for each task of a partition.", TASKS),
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
