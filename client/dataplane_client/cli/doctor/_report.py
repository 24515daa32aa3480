"""What all checks found, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from dataplane_client.cli._output import print_text
from dataplane_client.cli._table import plain_table
from dataplane_client.cli._words import plural
from dataplane_client.cli.doctor._check import Check

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def print_report(address: str, checks: Sequence[Check]) -> None:
    table = plain_table("", "check", "found")
    for check in checks:
        table.add_row(Text(check.outcome, _STYLES[check.outcome]), check.name, check.found)
        if check.advice:
            table.add_row("", "", f"-> {check.advice}")
    problems, warnings = (sum(check.outcome == kind for check in checks) for kind in ("problem", "warning"))
    print_text(Text(address, "bold"), table, f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
