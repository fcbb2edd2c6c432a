"""The charts of a report, as inline SVG that uses the colours of the page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from leasehold.errors import ExtraMissing
from leasehold.spark.jobs.html_page import duration

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter
except ImportError as error:
    raise ExtraMissing("the charts of a report", "spark") from error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from matplotlib.axes import Axes

#: The colours that matplotlib draws with, and their CSS values in the page, which may be light or dark.
_COLOURS = {
    "#010203": "currentColor",
    "#030201": "var(--line)",
    "#0000f1": "var(--first)",
    "#0000f2": "var(--second)",
    "#0000f3": "var(--third)",
}
_TEXT, _LINE, *_SERIES = _COLOURS
#: Line styles, to distinguish lines without colours.
_DASHES = ("-", "--", ":")
#: Text stays text, and the same data give the same file.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "leasehold",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.edgecolor": _LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.5,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _TEXT,
    "ytick.labelcolor": _TEXT,
    "legend.frameon": False,
}
#: The maximum of workers in a chart.
MAX_BARS = 20


def over_time(
    name: str,
    title: str,
    times: Sequence[datetime],
    span: timedelta,
    series: Mapping[str, Sequence[float | None]],
    *,
    lengths: bool = False,
) -> str:
    """Draw values over time as lines, with points in the middle of each interval; None leaves a gap.

    Args:
        name: The chart's name, which no other chart of the page has.
        title: The description for readers who cannot see it.
        times: The start of each interval.
        span: The length of each interval.
        series: The values by their labels.
        lengths: Whether they are durations in seconds. Then 0 is left out, and the scale is logarithmic if
            the longest is ten times the shortest.
    """
    with rc_context(_STYLE):
        figure, axes = _figure(2.6)
        marker = "." if len(times) < 40 else ""
        middles: list[Any] = [time + span / 2 for time in times]
        for colour, dashes, (label, values) in zip(_SERIES, _DASHES, series.items(), strict=False):
            drawn: list[Any] = [None if lengths and not value else value for value in values]
            axes.plot(middles, drawn, dashes, label=label, color=colour, linewidth=1.5, marker=marker)
        shown = [value for values in series.values() for value in values if value]
        if lengths and shown and max(shown) >= 10 * min(shown):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.1 * max(shown, default=1))
        if lengths:
            axes.yaxis.set_major_formatter(lambda value, _: duration(value))
        axes.set_xlim(times[0], times[-1] + span)  # type: ignore[arg-type]  # matplotlib takes times
        axes.set_xlabel("UTC")
        return _svg(figure, axes, name, title)


def bars(name: str, title: str, labels: Sequence[str], series: Mapping[str, Sequence[int]]) -> str:
    """Draw counts as stacked bars, one row per label, at most 20 rows."""
    labels = labels[:MAX_BARS]
    with rc_context(_STYLE):
        figure, axes = _figure(0.8 + 0.28 * len(labels))
        begins = [0] * len(labels)
        for colour, (label, counts) in zip(_SERIES, series.items(), strict=False):
            shown = counts[:MAX_BARS]
            axes.barh(range(len(labels)), shown, left=begins, label=label, color=colour, height=0.7)
            begins = [begin + count for begin, count in zip(begins, shown, strict=True)]
        # To matplotlib, two dollars mark a formula.
        axes.set_yticks(range(len(labels)), [label.replace("$", r"\$") for label in labels])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        return _svg(figure, axes, name, title)


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    return figure, axes


def _svg(figure: Figure, axes: Axes, name: str, title: str) -> str:
    if len(axes.get_legend_handles_labels()[1]) > 1:
        figure.legend(loc="outside upper left", ncols=3)
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    # Leave out the document type of a file.
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    for drawn, meant in _COLOURS.items():
        svg = svg.replace(drawn, meant)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    # Ids must be unique in the page, so each gets the name of its chart.
    svg = re.sub(r' id="([^"]+)"', rf' id="{name}-\1"', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'<svg[^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" role="img">', svg, count=1)
    # `xlink` would need a namespace.
    svg = svg.replace("xlink:href", "href")
    return svg.replace(">", f"><title>{title}</title>", 1)
