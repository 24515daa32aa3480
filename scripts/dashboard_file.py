"""Read Grafana's dashboard: panels with their queries, with every variable set to "All"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboard.json"


@dataclass(frozen=True)
class Target:
    """A query of a panel. legend: template that names a series by its labels, such as `{{task}}`."""

    expr: str
    legend: str

    def name(self, labels: Mapping[str, str]) -> str:
        """The name of a series in the legend."""
        return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), self.legend).strip()


@dataclass(frozen=True)
class Panel:
    """A panel. x, y, w, h: position on a grid of 24 columns. kind: row (a heading), stat (a number), or timeseries."""

    id: int
    kind: str
    title: str
    description: str
    unit: str
    x: int
    y: int
    w: int
    h: int
    stacked: bool
    logarithmic: bool
    maximum: float | None
    targets: tuple[Target, ...]


def load_panels(rate_interval: str, path: Path = DASHBOARD) -> list[Panel]:
    """Panels from top to bottom. rate_interval: look-back of rates, such as "1m"; at least four scrapes."""
    dashboard = json.loads(path.read_text())
    variables: dict[str, str] = {v["name"]: v.get("allValue", "") for v in dashboard["templating"]["list"]}
    variables["__rate_interval"] = rate_interval
    return [_panel(panel, variables) for panel in dashboard["panels"]]


def _panel(panel: dict[str, Any], variables: Mapping[str, str]) -> Panel:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    custom = defaults.get("custom", {})
    targets = (Target(_substituted(t["expr"], variables), t["legendFormat"]) for t in panel.get("targets", ()))
    return Panel(
        id=panel["id"],
        kind=panel["type"],
        title=panel["title"],
        description=panel.get("description", ""),
        unit=defaults.get("unit", ""),
        **panel["gridPos"],
        stacked="stacking" in custom,
        logarithmic=custom.get("scaleDistribution", {}).get("type") == "log",
        maximum=defaults.get("max"),
        targets=tuple(targets),
    )


def _substituted(expr: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda found: variables[found[1]], expr)
