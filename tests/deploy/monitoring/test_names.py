"""No rule and no panel asks for a metric or a label that the server does not have."""

from __future__ import annotations

import json
import re

from scripts.dashboard_file import DASHBOARD, load_panels
from tests.deploy.monitoring.expressions import Asked, asked
from tests.deploy.monitoring.rule_files import load_rules

from dataplane_server.observe.catalog import CATALOG

TARGET_LABELS = {"job", "instance"}
"""What Prometheus itself adds to every series."""
HISTOGRAMS = {spec.name: spec for spec in CATALOG if spec.kind == "histogram"}
CATALOG_LABELS = (
    {spec.name: set(spec.labels) for spec in CATALOG if spec.kind != "histogram"}
    | {f"{name}_bucket": {*spec.labels, "le"} for name, spec in HISTOGRAMS.items()}
    | {f"{name}_{part}": set(spec.labels) for name, spec in HISTOGRAMS.items() for part in ("sum", "count")}
)
EVERY_LABEL = TARGET_LABELS.union(*CATALOG_LABELS.values())
RECORDED = load_rules("record")

EXPRESSIONS = {
    **{name: rule["expr"] for kind in ("record", "alert") for name, rule in load_rules(kind).items()},
    **{f"{p.id}: {p.title} {n}": t.expr for p in load_panels("1m") for n, t in enumerate(p.targets)},
}


def labels_of(metric: str) -> set[str] | None:
    """The labels of a metric beside those of its target, or None where there is no such metric."""
    if metric == "up" or metric.startswith(("process_", "python_")):
        return set()
    if metric in RECORDED:
        return EVERY_LABEL - {"le"}
    return CATALOG_LABELS.get(metric)


def test_expressions_ask_for_what_the_catalog_has() -> None:
    for name, expr in EXPRESSIONS.items():
        question = asked(expr)
        assert question.selectors, name
        for metric, matched, text in question.selectors:
            known = labels_of(metric)
            assert known is not None, f"{name}: no such metric: {text}"
            assert matched <= known | TARGET_LABELS, f"{name}: no such label: {text}"
        assert question.labels <= known_to_some(question), name


def test_legends_name_labels_that_the_metrics_of_their_queries_have() -> None:
    for target in (target for panel in load_panels("1m") for target in panel.targets):
        assert set(re.findall(r"\{\{(\w+)\}\}", target.legend)) <= known_to_some(asked(target.expr)), target


def known_to_some(question: Asked) -> set[str]:
    """The labels of all metrics that an expression names."""
    return TARGET_LABELS.union(*(labels_of(metric) or () for metric, _, _ in question.selectors))


def test_variables_are_filled_from_metrics_and_labels_of_the_catalog() -> None:
    variables = {v["name"]: v for v in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "instance", "partition", "task"}
    for name in ("job", "instance", "partition", "task"):
        found = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", variables[name]["definition"])
        assert found is not None
        assert found[3] == name
        assert name in CATALOG_LABELS[found[1]] | TARGET_LABELS
        assert variables[name]["query"]["query"] == variables[name]["definition"]
