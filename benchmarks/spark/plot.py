"""The plot of Spark: bulk adds beside others, snapshots, what a row costs as tables grow, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.plots import figure, line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.rows import Row

#: Who they are, in words.
NAMES = {
    ("leasehold", "add"): 'format("leasehold")',
    ("ceiling", "add"): "a plain process,\n1,000 a call",
    ("ceiling", "add (add_items)"): "the same,\nadd_items",
    ("bare", "add"): "foreachPartition,\na pipeline by hand",
}


def draw(rows: Sequence[Row], path: Path) -> list[str]:
    """Draw what was measured; return the names of the files."""
    kinds: dict[str, tuple[Callable[[Any, list[Row]], None], list[Row]]] = {
        "Bulk add": (adds, [row for row in rows if row.scenario == "bulk_add"]),
        "Snapshot": (snapshots, [row for row in rows if row.scenario == "snapshot" and row.unit == "rows/s"]),
        "As the table grows": (growth, [row for row in rows if row.scenario == "growth"]),
        "Draining by batch": (
            drains,
            [row for row in rows if "batch" in row.setting and row.unit == "rows/s"],
        ),
        "A micro-batch": (overhead, [row for row in rows if row.scenario == "drain" and row.unit == "ms"]),
    }
    found = {title: (plot, its) for title, (plot, its) in kinds.items() if its}
    if not found:
        return []
    with figure(path, "Spark", min(2, len(found)), -(-len(found) // 2)) as panels:
        for panel, (title, (plot, its)) in zip(panels, found.items(), strict=False):
            plot(panel, its)
            panel.set(title=title)
        for panel in panels[len(found) :]:
            panel.set_visible(False)
    return [path.name]


def adds(panel: Any, rows: list[Row]) -> None:
    """Rows per second of each contestant."""
    bars = panel.bar([NAMES[row.who, row.what] for row in rows], [row.value for row in rows])
    panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    panel.tick_params(axis="x", labelsize=7)
    panel.set(ylabel="rows/s")


def snapshots(panel: Any, rows: list[Row]) -> None:
    """Rows per second by what is read."""
    bars = panel.bar([row.what for row in rows], [row.value for row in rows])
    panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    panel.set(ylabel="rows/s")


def growth(panel: Any, rows: list[Row]) -> None:
    """What a row costs."""
    for what in dict.fromkeys(row.what for row in rows):
        its = [row for row in rows if row.what == what]
        line(panel, its, "rows", what, "o-", "us_per_item")
        line(panel, its, "rows", f"{what}: server", "s--", "script_us_per_item")
    panel.set(xlabel="rows", ylabel="µs per row", xscale="log", yscale="log")


def drains(panel: Any, rows: list[Row]) -> None:
    """Rows per second by the size of a batch."""
    for what in dict.fromkeys(row.what for row in rows):
        line(panel, [row for row in rows if row.what == what], "batch", what, "o-")
    panel.set(xlabel="items in a batch", ylabel="rows/s", xscale="log", ylim=(0, None))


def overhead(panel: Any, rows: list[Row]) -> None:
    """What a micro-batch costs besides its rows."""
    bars = panel.barh([row.what for row in rows], [row.value for row in rows])
    panel.bar_label(bars, fmt="{:.0f}", fontsize=8)
    panel.set(xlabel="ms")
