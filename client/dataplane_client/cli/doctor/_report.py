"""The result of a check, and the report of all checks as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dataplane_client.cli._output import BAD, GOOD, WARNING, print_text
from dataplane_client.cli._table import Table
from dataplane_client.cli._text import plural

Outcome = Literal["ok", "warning", "problem"]

_STYLES = {"ok": GOOD, "warning": WARNING, "problem": BAD}


@dataclass(frozen=True)
class Check:
    """The result of one check. With a problem a client does not work; with a warning it works worse than it could.

    found: what the check found, one sentence. advice: what to change; empty if there is nothing to change.
    """

    name: str
    outcome: Outcome
    found: str
    advice: str = ""


def print_report(address: str, checks: Sequence[Check]) -> None:
    from rich.text import Text

    table = Table("", "check", "found", sentences=True)
    for check in checks:
        table.add_row(check.outcome, check.name, check.found, style=_STYLES[check.outcome])
        if check.advice:
            table.add_row("", "", f"-> {check.advice}")
    problems, warnings = (sum(check.outcome == kind for check in checks) for kind in ("problem", "warning"))
    print_text(Text(address, "bold"), table, f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
