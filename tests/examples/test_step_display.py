"""What a run shows of itself."""

from __future__ import annotations

import step_display


def test_a_run_that_has_trained_nothing_says_why_and_what_to_do() -> None:
    said = step_display.nothing_learned(trained_rows=0)
    assert "nothing can be learned so far[/bold]: in every group all rewards are equal" in said
    assert "leave out --model, or name a model that answers some" in said
    assert step_display.nothing_learned(trained_rows=8) == ""
