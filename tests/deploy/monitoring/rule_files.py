"""The rules of Prometheus and their tests, read from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules"
RULE_FILES = sorted(RULES.glob("*.yaml"))
RULE_TESTS = sorted((ROOT / "deploy" / "prometheus" / "tests").glob("*.yaml"))


def load_rules(kind: str) -> dict[str, dict[str, Any]]:
    """Rules by name; kind: "alert" or "record"."""
    groups = (group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"])
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def load_expectations() -> dict[str, list[list[Any]]]:
    """What the tests of promtool expect of each alert: for each case the alerts that fire, none where it is quiet."""
    tests = (test for path in RULE_TESTS for test in yaml.safe_load(path.read_text())["tests"])
    expected: dict[str, list[list[Any]]] = {}
    for case in (case for test in tests for case in test["alert_rule_test"]):
        expected.setdefault(case["alertname"], []).append(case["exp_alerts"])
    return expected
