"""Draw the panels of Grafana's dashboard to a PNG: `python -m scripts.draw_dashboard http://127.0.0.1:9090`.

The picture shows what Grafana would show, from the same file and the same queries. It needs no Grafana.
"""

from __future__ import annotations

import argparse
import io
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from PIL import Image
from scripts.dashboard_file import Panel, load_panels
from scripts.prometheus_server import Prometheus
from scripts.value_text import round_size, value_text

_POINTS = 240
"""Maximum number of points of a series in a panel."""
_COLUMNS, _COLUMN_IN, _ROW_IN = 24, 0.55, 0.31
"""Grafana's grid: number of columns, and size of a cell in inches."""
_MARGIN_IN, _TITLE_IN, _LEGEND_LINE_IN, _AXIS_LEFT_IN, _AXIS_BELOW_IN = 0.07, 0.34, 0.145, 0.72, 0.22
_LEGEND_LINES = 4
_LEGEND_SIZE, _LEGEND_CHARACTERS_PER_IN, _LEGEND_HANDLE_CHARACTERS = 7, 17, 4
_PAGE, _CARD, _LINES, _TEXT, _FAINT = "#111217", "#1a1d23", "#2f333b", "#d8d9df", "#9a9ca8"
_COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#5ac8c8", "#c0d8ff", "#ffa6b0")

_PALETTE = 128
"""Number of colours in the picture; the full palette takes three times the bytes."""

_Box = tuple[float, float, float, float]
"""Left, bottom, width, height."""


@dataclass(frozen=True)
class Line:
    """A series to draw: name, times in seconds from the start, values."""

    name: str
    times: tuple[float, ...]
    values: tuple[float, ...]


def draw_dashboard(
    prometheus: Prometheus, picture: Path, start: float, end: float, rate_interval: str, sections: Sequence[str] = ()
) -> None:
    """Write a PNG of the panels between two times (seconds since the epoch).

    rate_interval: look-back of rates, at least four scrapes. sections: titles of the rows to draw; all if empty.
    """
    panels = _of_sections(load_panels(rate_interval), sections)
    rows = max(panel.y + panel.h for panel in panels)
    figure = plt.figure(figsize=(_COLUMNS * _COLUMN_IN, rows * _ROW_IN), dpi=110, facecolor=_PAGE)
    with plt.rc_context({"font.size": 8, "text.color": _TEXT}):
        for panel in panels:
            if panel.kind == "row":
                _draw_heading(figure, panel)
                continue
            lines = _lines(prometheus, panel, start, end)
            _draw_card(figure, panel)
            (_draw_number if panel.kind == "stat" else _draw_graph)(figure, panel, lines, end - start)
    with io.BytesIO() as full:
        figure.savefig(full, facecolor=_PAGE)
        Image.open(full).convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE).save(picture, optimize=True)
    plt.close(figure)


def _of_sections(panels: list[Panel], sections: Sequence[str]) -> list[Panel]:
    """The panels below headings with these titles (all panels if there are no titles), moved up to close gaps."""
    chosen: list[Panel] = []
    section, gone = "", 0
    for panel in panels:
        section = panel.title if panel.kind == "row" else section
        if sections and section not in sections:
            gone = panel.y + panel.h - max((kept.y + kept.h for kept in chosen), default=0)
        else:
            chosen.append(replace(panel, y=panel.y - gone))
    return chosen


def _lines(prometheus: Prometheus, panel: Panel, start: float, end: float) -> list[Line]:
    """The series of all queries of a panel, without series that have no value."""
    lines = []
    for target in panel.targets:
        for series in prometheus.query_range(target.expr, start, end, max((end - start) / _POINTS, 0.1)):
            times, values = zip(*series.points, strict=True)
            if any(map(math.isfinite, values)):
                lines.append(Line(target.name(series.labels), tuple(at - start for at in times), values))
    return lines


def _box(figure: Figure, panel: Panel, left: float, top: float, right: float, below: float) -> _Box:
    """A panel's position in fractions of the figure, minus these margins in inches."""
    width, height = figure.get_size_inches()
    x, y = panel.x * _COLUMN_IN + left, height - (panel.y + panel.h) * _ROW_IN + below
    w, h = panel.w * _COLUMN_IN - left - right, panel.h * _ROW_IN - top - below
    return x / width, y / height, w / width, h / height


def _draw_heading(figure: Figure, panel: Panel) -> None:
    x, y, _, h = _box(figure, panel, 2 * _MARGIN_IN, 0, 0, 0)
    figure.text(x, y + h * 0.3, panel.title, size=11, weight="bold", va="baseline")


def _draw_card(figure: Figure, panel: Panel) -> None:
    x, y, w, h = _box(figure, panel, *(_MARGIN_IN / 2,) * 4)
    figure.add_artist(Rectangle((x, y), w, h, facecolor=_CARD, edgecolor=_LINES, lw=0.6, zorder=-1))
    x, y, _, h = _box(figure, panel, 2 * _MARGIN_IN, _TITLE_IN * 0.72, 0, 0)
    figure.text(x, y + h, panel.title, size=8.5, va="baseline")


def _draw_number(figure: Figure, panel: Panel, lines: list[Line], span: float) -> None:
    """Draw the newest value of the first series, over the curve of the series."""
    values = [value for line in lines[:1] for value in line.values if math.isfinite(value)]
    x, y, w, h = _box(figure, panel, _MARGIN_IN, _TITLE_IN, _MARGIN_IN, _MARGIN_IN)
    text = value_text(values[-1], panel.unit) if values else "none"
    figure.text(x + w / 2, y + h * 0.62, text, size=17, color=_COLOURS[2], ha="center", va="center")
    axes = figure.add_axes((x, y, w, h * 0.36), facecolor="none")
    axes.axis("off")
    axes.set(xlim=(0, span), ylim=(0, max([*values, 1e-9]) * 1.05))
    for line in lines[:1]:
        axes.fill_between(line.times, line.values, color=_COLOURS[2], alpha=0.35, lw=0)


def _draw_graph(figure: Figure, panel: Panel, lines: list[Line], span: float) -> None:
    """Draw lines, or stacked areas, with a legend below. If there are too many lines, draw those with the highest
    peaks.
    """
    columns = _legend_columns(panel, lines)
    lines = sorted(sorted(lines, key=_peak)[-columns * _LEGEND_LINES :], key=lines.index)
    legend_in = math.ceil(len(lines) / columns) * _LEGEND_LINE_IN
    below = _AXIS_BELOW_IN + legend_in + 2 * _MARGIN_IN
    axes = figure.add_axes(_box(figure, panel, _AXIS_LEFT_IN, _TITLE_IN, 3 * _MARGIN_IN, below), facecolor="none")
    if panel.stacked:
        _stack(axes, lines)
    else:
        for line, (style, colour) in zip(lines, itertools.product(("-", "--"), _COLOURS), strict=False):
            axes.plot(line.times, line.values, color=colour, ls=style, lw=1.2, label=line.name)
    _dress(axes, panel, span)
    if lines:
        _draw_legend(figure, panel, axes, columns)
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, color=_FAINT, ha="center", va="center")


def _draw_legend(figure: Figure, panel: Panel, axes: Axes, columns: int) -> None:
    left, bottom, _, _ = _box(figure, panel, 2 * _MARGIN_IN, 0, 0, _MARGIN_IN)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(left, bottom),
        bbox_transform=figure.transFigure,
        ncols=columns,
        fontsize=_LEGEND_SIZE,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.1,
        columnspacing=1.2,
        labelspacing=0.3,
        labelcolor=_TEXT,
    )


def _legend_columns(panel: Panel, lines: list[Line]) -> int:
    """The number of legend columns that fit the longest name."""
    longest = max((len(line.name) for line in lines), default=0) + _LEGEND_HANDLE_CHARACTERS
    return max(1, int(panel.w * _COLUMN_IN * _LEGEND_CHARACTERS_PER_IN / longest))


def _peak(line: Line) -> float:
    return max((value for value in line.values if math.isfinite(value)), default=0.0)


def _stack(axes: Axes, lines: list[Line]) -> None:
    """Draw stacked areas, at the times that all lines share."""
    times = sorted(set.intersection(*(set(line.times) for line in lines))) if lines else []
    courses = [dict(zip(line.times, line.values, strict=True)) for line in lines]
    heights = [[course[at] for at in times] for course in courses]
    if lines:
        axes.stackplot(times, heights, colors=_COLOURS, alpha=0.8, lw=0, labels=[line.name for line in lines])


def _dress(axes: Axes, panel: Panel, span: float) -> None:
    axes.set_xlim(0, span)
    if panel.logarithmic and axes.dataLim.ymax > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        _scale_from_zero(axes, panel)
    axes.yaxis.set_major_formatter(lambda value, _: value_text(value, panel.unit))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 6, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02}")
    axes.grid(visible=True, color=_LINES, lw=0.5)
    axes.tick_params(colors=_FAINT, length=0, labelsize=7)
    axes.spines[:].set_visible(False)


def _scale_from_zero(axes: Axes, panel: Panel) -> None:
    """Scale the y axis from zero to the maximum of the panel or its data, with ticks at round values."""
    top = panel.maximum or (axes.get_ylim()[1] if axes.dataLim.ymax > 0 else 1.0)
    size = round_size(top, panel.unit)
    ticks = np.asarray(MaxNLocator(4, integer=panel.unit == "short").tick_values(0, top / size)) * size
    axes.set_ylim(0, top)
    axes.set_yticks(ticks[ticks <= top])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="address of Prometheus, such as http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=60.0, help="time span of the picture (%(default)s)")
    parser.add_argument("--rate-interval", default="1m", help="look-back of rates (%(default)s)")
    parser.add_argument("--sections", nargs="+", default=(), help="titles of the rows to draw (default: all)")
    parser.add_argument("--out", type=Path, default=Path("dashboard.png"))
    args = parser.parse_args()
    now = time.time()
    draw_dashboard(Prometheus(args.url), args.out, now - 60 * args.minutes, now, args.rate_interval, args.sections)


if __name__ == "__main__":
    main()
