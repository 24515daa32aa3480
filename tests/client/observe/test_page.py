"""The tables of docs/observability.md match the code, and its examples run."""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from tests import commands

from dataplane_client import observe

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "observability.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
LEVELS = {"debug", "info", "warning", "error"}
LOGGING = re.compile(rf"\blog_event\b|\.({'|'.join(LEVELS)})\b")


def test_the_examples_run() -> None:
    code = "import warnings\nfor kind in (DeprecationWarning, UserWarning):\n    warnings.simplefilter('error', kind)\n"
    code += "\n".join(f"exec({example!r}, {{}})" for example in EXAMPLES)
    done = commands.run([sys.executable, "-c", code])
    assert (done.returncode, done.stderr) == (0, "")
    assert '"event": "memory_not_shared"' in done.stdout


def table(heading: str) -> dict[str, list[str]]:
    """The rows of a table: the other cells by the first cell."""
    rows = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {first.strip("`"): rest for first, *rest in cells}


def test_the_table_of_metrics_matches_the_list() -> None:
    assert table("metric") == {
        metric.name: [metric.kind, ", ".join(metric.labels), metric.text] for metric in observe.CLIENT_METRICS
    }


@pytest.mark.parametrize(
    ("heading", "packages"),
    [
        ("event of the client", ["client/dataplane_client", "integrations"]),
        ("event of the server", ["dataplane_server/dataplane_server"]),
    ],
    ids=["client", "server"],
)
def test_the_tables_of_events_match_the_sources(heading: str, packages: list[str]) -> None:
    found = chain.from_iterable(events_in(ROOT / package) for package in packages)
    logged = {event: [level, ", ".join(fields)] for event, level, fields in found}
    assert {event: cells[:2] for event, cells in table(heading).items()} == logged


def test_no_field_of_an_event_has_the_name_of_a_log_record_attribute() -> None:
    found = chain.from_iterable(events_in(ROOT / package) for package in ("client/dataplane_client", "integrations"))
    fields = {field for _, _, names in found for field in names}
    assert fields & {*vars(logging.makeLogRecord({})), "message", "asctime"} == set()


@cache
def events_in(package: Path) -> list[tuple[str, str, list[str]]]:
    """Every event that is logged: its name, level and fields."""
    sources = [path.read_text() for path in package.rglob("*.py") if path.name != "_log.py"]
    trees = [ast.parse(source) for source in sources if LOGGING.search(source)]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [event for call in calls for event in events_of(call)]


def events_of(call: ast.Call) -> Iterator[tuple[str, str, list[str]]]:
    texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    fields = [keyword.arg for keyword in call.keywords if keyword.arg]
    if isinstance(call.func, ast.Name) and call.func.id == "log_event":
        level = call.args[0]
        assert isinstance(level, ast.Attribute)
        yield str(texts[0]), level.attr.lower(), fields
    elif isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS and "log" in ast.unparse(call.func.value):
        yield str(texts[0]), call.func.attr, fields
