"""Every alert fires when it should and is quiet when it should be, and leads to what to do about it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scripts.prometheus_server import find_command
from tests.deploy.monitoring.rule_files import ROOT, RULE_FILES, RULE_TESTS, RULES, load_expectations, load_rules
from tests.repository.test_pages import anchors_of

ALERTS = load_rules("alert")
OPERATIONS = ROOT / "docs" / "operations.md"


@pytest.fixture(scope="session")
def promtool() -> Path:
    command = find_command("promtool")
    if command is None:
        pytest.skip("there is no promtool on PATH or in the environment, and `make test` could not fetch it")
    return command


def run(promtool: Path, *arguments: str | Path) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_example_configuration_and_its_rules(promtool: Path) -> None:
    assert "rules found" in run(promtool, "check", "config", RULES.parent / "prometheus.yaml")


def test_recording_rules_and_alerts_are_free_of_duplicates_and_lint(promtool: Path) -> None:
    assert "rules found" in run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES)


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_are_quiet_as_their_tests_say(promtool: Path, path: Path) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", path)


def test_every_alert_is_tested_where_it_fires_and_where_it_is_quiet() -> None:
    cases = load_expectations()
    assert set(cases) == set(ALERTS)
    assert [alert for alert in ALERTS if {bool(fires) for fires in cases[alert]} != {True, False}] == []


def test_alerts_say_how_bad_it_is_what_is_wrong_with_figures_and_where_the_guide_says_what_to_do() -> None:
    sections = {f"docs/operations.md#{anchor}" for anchor in anchors_of(OPERATIONS)}
    for name, rule in ALERTS.items():
        texts = rule["annotations"]
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert set(texts) == {"summary", "description", "runbook"}, name
        assert "$labels.instance" in texts["description"], name
        assert (texts["summary"].endswith("."), texts["description"].endswith(".")) == (False, True), name
        assert texts["runbook"] in sections, name
