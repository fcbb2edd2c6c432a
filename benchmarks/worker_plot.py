"""The plot of the worker: speed beside calls by hand, where the time goes, delays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.plots import figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.rows import Row


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """Draw what was measured; return the names of the files."""
    name = "worker.png"
    panels_of = {
        "Items per second in one process": (speeds, [row for row in rows if row.unit == "items/s"]),
        "Where the time of a job goes": (costs, [row for row in rows if row.unit == "µs/job"]),
        "An idle worker": (delays, [row for row in rows if row.scenario == "worker_idle" and row.samples]),
        "After the server was killed": (restarts, [row for row in rows if row.scenario == "worker_restart"]),
    }
    found = {title: (plot, its) for title, (plot, its) in panels_of.items() if its}
    with figure(folder / name, "The worker", min(2, len(found)), -(-len(found) // 2)) as panels:
        for panel, (title, (plot, its)) in zip(panels, found.items(), strict=False):
            plot(panel, its)
            panel.set(title=title)
        for panel in panels[len(found) :]:
            panel.set_visible(False)
    return [name]


def speeds(panel: Any, rows: Sequence[Row]) -> None:
    """The worker beside the same by hand."""
    bars = panel.bar(
        [row.what for row in rows], [row.value for row in rows], color=["tab:blue", "tab:gray", "tab:gray"]
    )
    panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    panel.set(ylabel="items/s")


def costs(panel: Any, rows: Sequence[Row]) -> None:
    """µs per job of either side, and by command."""
    its = list(reversed(rows))
    bars = panel.barh([row.what.removeprefix("server: ") for row in its], [row.value for row in its])
    panel.bar_label(bars, fmt="{:.2f}", fontsize=7)
    panel.tick_params(axis="y", labelsize=7)
    panel.set(xlabel="µs per job; commands are inside of scripts")


def delays(panel: Any, rows: Sequence[Row]) -> None:
    """Which share began so soon."""
    for row in rows:
        shares = [100 * (at + 1) / len(row.samples) for at in range(len(row.samples))]
        panel.step(sorted(row.samples), shares, label=row.what)
    panel.set(xlabel="ms", ylabel="% of all, at most so long", xscale="log", ylim=(0, 101))


def restarts(panel: Any, rows: Sequence[Row]) -> None:
    """Each time that was measured."""
    for row in rows:
        panel.plot(
            [str(row.setting["away"])] * len(row.samples), row.samples, "o", color="tab:blue", alpha=0.6
        )
    panel.set(xlabel="the server was away for", ylabel="ms until a handler began", ylim=(0, None))
