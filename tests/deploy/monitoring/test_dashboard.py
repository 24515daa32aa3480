"""The dashboard can be imported and read: panels apart from each other, each with title, unit and explanation."""

from __future__ import annotations

import itertools
import json

from scripts.dashboard_file import DASHBOARD, Panel, load_panels

PANELS = load_panels("1m")
GRAPHS = [panel for panel in PANELS if panel.kind != "row"]


def test_every_panel_has_unit_explanation_and_named_queries() -> None:
    for panel in GRAPHS:
        assert panel.kind in ("stat", "timeseries"), panel
        assert panel.title, panel
        assert panel.unit, panel
        assert panel.description.endswith("."), panel
        assert panel.targets, panel
        assert panel.kind == "stat" or all(target.legend for target in panel.targets), panel


def test_every_query_goes_to_the_data_source_that_was_chosen() -> None:
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


def test_panels_fill_a_grid_of_24_columns_and_do_not_overlap() -> None:
    assert all(panel.x >= 0 and panel.x + panel.w <= 24 and panel.h > 0 for panel in PANELS)
    assert not [(a.title, b.title) for a, b in itertools.combinations(PANELS, 2) if overlap(a, b)]


def overlap(a: Panel, b: Panel) -> bool:
    return a.x < b.x + b.w and b.x < a.x + a.w and a.y < b.y + b.h and b.y < a.y + a.h
