"""Draw the growths as one picture: one panel each, logarithmic axes, medians with ranges, the floor dashed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from growth import Growth, short

_COLUMNS = 3
_COLOURS = ("#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#ff7f0e")


def draw(growths: Sequence[Growth], title: str, path: Path) -> None:
    """Write the picture as a PNG file."""
    mpl.use("Agg")
    rows = math.ceil(len(growths) / _COLUMNS)
    figure = Figure(figsize=(5.2 * _COLUMNS, 4.2 * rows), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(rows, _COLUMNS, squeeze=False).flatten().tolist()
    for panel, growth in zip(panels, growths, strict=False):
        _draw_panel(panel, growth)
    for panel in panels[len(growths) :]:
        panel.set_axis_off()
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)


def _draw_panel(panel: Axes, growth: Growth) -> None:
    colours = iter(_COLOURS)
    for name, line in growth.lines.items():
        medians = [series.median for series in line]
        style = ("#555555", "--") if name == "floor" else (next(colours), "-")
        panel.plot(growth.at, medians, style[1], color=style[0], marker="o", markersize=3, label=name)
        panel.fill_between(
            growth.at, [s.low for s in line], [s.high for s in line], color=style[0], alpha=0.15, linewidth=0
        )
    panel.set_xscale("log")
    panel.set_xticks(growth.at, [short(x) for x in growth.at])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(growth.x)
    panel.set_ylabel(growth.y)
    panel.set_title(f"growth with {growth.name}", fontsize=10)
    panel.grid(True, which="both", alpha=0.2)
    panel.legend(fontsize=8)
