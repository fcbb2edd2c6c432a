"""The figures side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.plots import figure
from benchmarks.rivals.results import HEADS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.rivals.results import Result

SHOWN = ("one_per_s", "bulk_per_s", "drain_per_s", "fifty_of_ideal", "idle_p50_ms", "idle_p99_ms")


def draw(results: Sequence[Result], path: Path) -> str | None:
    """Draw one panel for each figure that was measured; return the file's name."""
    names = [name for name in SHOWN if any(one.figure(name) is not None for one in results)]
    if not names:
        return None
    labels = [one.contestant.label.replace(", ", "\n") for one in results]
    columns = min(3, len(names))
    with figure(path, "One worker process, one server", columns, -(-len(names) // columns)) as panels:
        for panel, name in zip(panels, names, strict=False):
            values = [one.figure(name) or 0.0 for one in results]
            colours = ["tab:blue" if one.contestant.ours else "tab:gray" for one in results]
            bars = panel.barh(labels, values, color=colours)
            panel.bar_label(bars, fmt="{:,.3g}" if max(values) < 100 else "{:,.0f}", fontsize=7, padding=2)
            panel.invert_yaxis()
            panel.margins(x=0.2)
            better = "more" if HEADS[name][1] else "less"
            panel.set_title(f"{HEADS[name][0]} ({better} is better)", fontsize=9)
            panel.tick_params(labelsize=8)
        for panel in panels[len(names) :]:
            panel.set_visible(False)
    return path.name
