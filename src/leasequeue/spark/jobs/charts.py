"""The charts of a report, as inline SVG that uses the colours of the page."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from datetime import UTC
from html import escape
from typing import TYPE_CHECKING, Any

from leasequeue.errors import ExtraMissing
from leasequeue.spark.jobs.html_page import duration

try:
    import matplotlib.dates
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
except ImportError as error:
    raise ExtraMissing("the charts of a report", "spark") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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
    "svg.hashsalt": "leasequeue",
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
#: The maximum of bars in a chart.
MAX_BARS = 20
#: Units of axes: durations, and parts of a whole.
SECONDS, SHARE = "seconds", "share"
#: What the end of a time axis adds to its labels, by the unit of the labels: years to seconds.
_DATES = ["", "%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d %H:%M"]


@dataclass(frozen=True)
class _Size:
    """How large a chart is drawn, so that its text can be read where it is shown."""

    name: str
    #: In inches of 72 units; the page stretches it to its own width.
    width: float
    height: float
    #: About how many labels the time axis has.
    times: int
    #: The longest name of a bar (characters).
    letters: int


#: For wide and narrow screens: the page shows one of them.
_SIZES = (_Size("wide", 9.6, 2.6, 9, 60), _Size("narrow", 3.9, 2.5, 6, 26))


def over_time(
    name: str,
    title: str,
    times: Sequence[datetime],
    span: timedelta,
    series: Mapping[str, Sequence[float | None]],
    *,
    unit: str,
) -> list[str]:
    """Draw values over time as lines, with points in the middle of each interval; None leaves a gap.

    Args:
        name: The chart's name, which no other chart of the page has.
        title: The description for readers who cannot see it.
        times: The start of each interval.
        span: The length of each interval.
        series: The values by their labels.
        unit: What the values are: `seconds`, `share`, or a text for their axis. Of durations 0 is left out,
            and the scale is logarithmic if the longest is ten times the shortest.

    Returns:
        The chart for wide and for narrow screens.
    """
    middles: list[Any] = [time + span / 2 for time in times]

    def draw(axes: Axes, size: _Size) -> None:
        marker = "." if len(times) < 40 else ""
        for colour, dashes, (label, values) in zip(_SERIES, _DASHES, series.items(), strict=False):
            drawn: list[Any] = [None if unit == SECONDS and not value else value for value in values]
            axes.plot(middles, drawn, dashes, label=label, color=colour, linewidth=1.5, marker=marker)
        _scale(axes, [value for values in series.values() for value in values if value], unit)
        # Some of matplotlib has no types.
        dates: Any = matplotlib.dates
        locator = dates.AutoDateLocator(minticks=3, maxticks=size.times, tz=UTC)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC, offset_formats=_DATES))
        axes.set_xlim(times[0], times[-1] + span)  # type: ignore[arg-type]  # matplotlib takes times
        axes.set_xlabel("UTC")

    return [_svg(draw, size, size.height, name, title) for size in _SIZES]


def bars(
    name: str, title: str, labels: Sequence[str], series: Mapping[str, Sequence[int]], *, unit: str
) -> list[str]:
    """Draw counts as stacked bars, one row per label, at most 20 rows.

    Args:
        name: The chart's name, which no other chart of the page has.
        title: The description for readers who cannot see it.
        labels: The names of the bars.
        series: The counts by their labels.
        unit: What is counted.

    Returns:
        The chart for wide and for narrow screens.
    """
    labels = labels[:MAX_BARS]

    def draw(axes: Axes, size: _Size) -> None:
        begins = [0] * len(labels)
        for colour, (label, counts) in zip(_SERIES, series.items(), strict=False):
            shown = counts[:MAX_BARS]
            axes.barh(range(len(labels)), shown, left=begins, label=label, color=colour, height=0.7)
            begins = [begin + count for begin, count in zip(begins, shown, strict=True)]
        # To matplotlib, two dollars mark a formula.
        names = [_shortened(label, size.letters).replace("$", r"\$") for label in labels]
        axes.set_yticks(range(len(labels)), names)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(size.times, steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel(unit)

    return [_svg(draw, size, 0.9 + 0.25 * len(labels), name, title) for size in _SIZES]


def _scale(axes: Axes, shown: Sequence[float], unit: str) -> None:
    """Set the scale and the labels of the axis of values."""
    if unit == SECONDS and shown and max(shown) >= 10 * min(shown):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.1 * max(shown, default=1))
    if unit == SECONDS:
        axes.yaxis.set_major_formatter(lambda value, _: duration(value))
    elif unit == SHARE:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    else:
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.set_ylabel(unit)


def _shortened(label: str, letters: int) -> str:
    """Leave out the middle of a long label: the ends of hosts and classes distinguish them."""
    if len(label) <= letters:
        return label
    return f"{label[: letters // 3]}…{label[-(letters - letters // 3 - 1) :]}"


def _svg(draw: Callable[[Axes, _Size], None], size: _Size, height: float, name: str, title: str) -> str:
    with rc_context(_STYLE):
        figure = Figure(figsize=(size.width, height), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes, size)
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
    prefix = f"{name}-{size.name}"
    svg = re.sub(r' id="([^"]+)"', rf' id="{prefix}-\1"', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    opened = rf'<svg class="{size.name}" viewBox="\1" role="img">'
    svg = re.sub(r'<svg[^>]*?viewBox="([^"]+)"[^>]*>', opened, svg, count=1)
    # `xlink` would need a namespace.
    svg = svg.replace("xlink:href", "href")
    return svg.replace(">", f"><title>{escape(title)}</title>", 1)
