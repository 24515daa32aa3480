"""`dataplane doctor`: checks whether a client can work well from where the command runs, and reports what it found."""

from __future__ import annotations

from dataplane_client.cli._doctor_checks import checks_of
from dataplane_client.cli._output import BAD, GOOD, WARNING, Format, show
from dataplane_client.cli._server import open_server
from dataplane_client.cli._table import Labelled, Table
from dataplane_client.cli._text import plural

_STYLES = {"ok": GOOD, "warning": WARNING, "problem": BAD}


def examine(address: str, output: Format, timeout_s: float) -> int:
    """Run all checks, print the report, and return the exit code: 1 if there is a problem, else 0."""
    with open_server(address, timeout_s) as server:
        checks = list(checks_of(server))
    problems, warnings = (sum(check.outcome == kind for check in checks) for kind in ("problem", "warning"))
    table = Table("", "check", "found", sentences=True)
    for check in checks:
        table.add_row(check.outcome, check.name, check.found, style=_STYLES[check.outcome])
        if check.advice:
            table.add_row("", "", f"-> {check.advice}")
    document = {"address": address, "problems": problems, "warnings": warnings, "checks": checks}
    summary = f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}"
    show(output, document, Labelled(address, "", style="bold"), table, summary)
    return 1 if problems else 0
