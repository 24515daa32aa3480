"""`dataplane doctor`: checks whether a client can work well from where the command runs, and reports what it found."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane_client.cli._doctor_checks import Check, checks_of
from dataplane_client.cli._options import Format
from dataplane_client.cli._output import BAD, GOOD, WARNING, print_json, print_text
from dataplane_client.cli._server import open_server
from dataplane_client.cli._table import Table
from dataplane_client.cli._text import plural

_STYLES = {"ok": GOOD, "warning": WARNING, "problem": BAD}


def examine(address: str, output: Format, timeout_s: float) -> int:
    """Run all checks, print the report, and return the exit code: 1 if there is a problem, else 0."""
    with open_server(address, timeout_s) as server:
        checks = list(checks_of(server))
    problems, warnings = (sum(check.outcome == kind for check in checks) for kind in ("problem", "warning"))
    if output == "json":
        print_json({"address": address, "problems": problems, "warnings": warnings, "checks": checks})
    else:
        _print_report(address, checks, f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
    return 1 if problems else 0


def _print_report(address: str, checks: Sequence[Check], summary: str) -> None:
    from rich.text import Text

    table = Table("", "check", "found", sentences=True)
    for check in checks:
        table.add_row(check.outcome, check.name, check.found, style=_STYLES[check.outcome])
        if check.advice:
            table.add_row("", "", f"-> {check.advice}")
    print_text(Text(address, "bold"), table, summary)
