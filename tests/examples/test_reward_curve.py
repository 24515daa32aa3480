from __future__ import annotations

from pathlib import Path

import pytest

from reward_curve import draw_reward_curve, running_mean


@pytest.mark.parametrize(
    ("window", "means"),
    [
        pytest.param(1, [1.0, 3.0, 5.0, 7.0], id="one"),
        pytest.param(2, [1.0, 2.0, 4.0, 6.0], id="two"),
        pytest.param(9, [1.0, 2.0, 3.0, 4.0], id="more than there are"),
    ],
)
def test_a_running_mean_looks_back_over_the_window(window: int, means: list[float]) -> None:
    assert running_mean([1.0, 3.0, 5.0, 7.0], window) == means


@pytest.mark.parametrize("steps", [1, 50])
def test_a_curve_is_a_png_file(tmp_path: Path, steps: int) -> None:
    picture = tmp_path / "reward.png"
    draw_reward_curve([0.5] * steps, picture)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
