"""Draw the mean reward by step of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt

WINDOW = 10


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and its predecessors, over at most `window` values."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def draw_reward_curve(rewards: Sequence[float], picture: Path) -> None:
    """Write a PNG: each step's mean reward (fraction of rollouts with the right answer) and the mean of ten steps."""
    steps = range(1, len(rewards) + 1)
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=120, layout="constrained")
    axes.plot(steps, rewards, "o", color="#9db8d9", markersize=4, label="one step")
    axes.plot(steps, running_mean(rewards, WINDOW), color="#1f4e8c", linewidth=2.2, label=f"mean of {WINDOW} steps")
    axes.set(
        xlabel="GRPO step", ylabel="rollouts with the right answer (fraction)", ylim=(0, 1), xlim=(0, len(rewards) + 1)
    )
    axes.set_title("Reward of the tiny model on word problems", loc="left")
    axes.grid(visible=True, color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(picture)
    plt.close(figure)
