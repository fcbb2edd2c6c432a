"""The plots: one figure per file, with a panel for each group of rows that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.rows import Row

    Rows = Sequence[Row]

mpl.use("Agg")

REFERENCES = {"bare": ("bare, one at a time", "tab:gray"), "ceiling": ("ceiling, 500 a call", "tab:red")}
PHASES = ("add", "lease", "complete")


class Panel:
    """One plot of a figure.

    Args:
        title: Its title.
        draw: Draws the rows.
        rows: Chooses the rows; a panel without any is left out.
        axes: Settings of the axes.
    """

    def __init__(
        self, title: str, draw: Callable[[Any, Rows], None], rows: Callable[[Row], bool], **axes: object
    ) -> None:
        self.title = title
        self.draw = draw
        self.rows = rows
        self.axes = axes


@dataclass(frozen=True)
class Figure:
    """One file with plots."""

    file: str
    title: str
    panels: Sequence[Panel]
    columns: int = 2

    def save(self, rows: Rows, folder: Path) -> bool:
        """Draw the rows; return False if no panel has any."""
        found = [(panel, its) for panel in self.panels if (its := [row for row in rows if panel.rows(row)])]
        if not found:
            return False
        columns = min(self.columns, len(found))
        lines = -(-len(found) // columns)
        size = (5.2 * columns + 0.6, 3.8 * lines + 0.5)
        canvas, plots = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
        canvas.suptitle(self.title)
        for plot in plots.flat[len(found) :]:
            plot.set_visible(False)
        for plot, (panel, its) in zip(plots.flat, found, strict=False):
            panel.draw(plot, its)
            plot.set(title=panel.title, **panel.axes)
            plot.grid(visible=True, alpha=0.3)
            if plot.get_legend_handles_labels()[0]:
                plot.margins(y=0.25)
                plot.legend(fontsize="small", ncols=2)
        canvas.savefig(folder / self.file, dpi=110)
        plt.close(canvas)
        return True


def draw(report: str, rows: Rows, folder: Path) -> list[str]:
    """Draw the figures of a report; return the names of the files."""
    return [figure.file for figure in FIGURES[report] if figure.save(rows, folder)]


# ------------------------------------------------------------------------------------------ kinds of plots


def line(
    plot: Any, rows: Rows, by: str, label: str, style: str = "o-", cost: str = "", colour: str | None = None
) -> None:
    """Draw a line through rows, by one value of their setting."""
    points = sorted((float(row.setting[by]), row.more[cost] if cost else row.value) for row in rows)
    if points:
        plot.plot(*zip(*points, strict=True), style, label=label, color=colour)
        sizes = [size for size, _ in points]
        plot.set_xscale("log")
        plot.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        plot.minorticks_off()


def bars(plot: Any, rows: Rows) -> None:
    """Draw a column per row; the worker's references are gray."""
    colours = ["tab:gray" if row.what in ("whole cycle", "lease, complete") else "tab:blue" for row in rows]
    labels = [SPARK_LABELS.get((row.who, row.what), row.what) for row in rows]
    plot.bar_label(plot.bar(labels, [row.value for row in rows], color=colours), fmt="{:,.0f}", fontsize=8)
    plot.tick_params(axis="x", labelsize=7 if len(rows) > 3 else None)


def horizontal_bars(digits: int) -> Callable[[Any, Rows], None]:
    """Draw a bar per row, the first at the top."""

    def draw(plot: Any, rows: Rows) -> None:
        its = plot.barh([row.what.removeprefix("server: ") for row in rows], [row.value for row in rows])
        plot.bar_label(its, fmt=f"{{:.{digits}f}}", fontsize=7)
        plot.tick_params(axis="y", labelsize=7)
        plot.invert_yaxis()

    return draw


def grouped_bars(plot: Any, groups: dict[str, list[float]], ticks: list[str], fmt: str = "{:,.0f}") -> None:
    """Draw groups of columns, one of each label per tick."""
    width = 0.8 / len(groups)
    for shift, (label, values) in enumerate(groups.items()):
        its = plot.bar([at + width * shift for at in range(len(values))], values, width=width, label=label)
        plot.bar_label(its, fmt=fmt, fontsize=7)
    plot.set_xticks([at + 0.4 - width / 2 for at in range(len(ticks))], ticks, fontsize=8)


def shares(label: Callable[[Row], str]) -> Callable[[Any, Rows], None]:
    """Draw which share of the samples takes at most how long."""

    def draw(plot: Any, rows: Rows) -> None:
        for row in rows:
            percent = [100 * (at + 1) / len(row.samples) for at in range(len(row.samples))]
            plot.step(sorted(row.samples), percent, label=label(row))
        plot.set(xlabel="ms", ylabel="% that take at most this", ylim=(0, 101))

    return draw


# ----------------------------------------------------------------------------------------------- the panels


def by_coroutines(plot: Any, rows: Rows) -> None:
    """Draw items per second by the number of coroutines, and the references."""
    line(plot, [row for row in rows if row.who == "leasehold"], "coroutines", "leasehold")
    for row in rows:
        if row.who in REFERENCES:
            label, colour = REFERENCES[row.who]
            plot.axhline(row.value, label=label, color=colour, linestyle="--")
    plot.set(xlabel="coroutines", ylabel="items/s", yscale="log")


def by_payload(plot: Any, rows: Rows) -> None:
    """Draw cycles per second by payload."""
    payloads = sorted({int(row.setting["payload"]) for row in rows})
    labels: dict[str | int, str] = {"bare": "bare, one at a time", 1: "one coroutine"}
    labels |= {1_000: "1,000 coroutines", "ceiling": "ceiling"}
    found = {(row.setting["payload"], row.setting.get("coroutines", row.who)): row.value for row in rows}
    groups = {label: [found[payload, key] for payload in payloads] for key, label in labels.items()}
    grouped_bars(plot, groups, [f"{payload:,} bytes" for payload in payloads])


def by_backlog(plot: Any, rows: Rows) -> None:
    """Draw the cost of an item by the number of waiting items."""
    for label, coroutines, style in (("alone", 1, "o-"), ("500 at once", 500, "s-")):
        its = [row for row in rows if row.setting.get("coroutines") == coroutines]
        line(plot, its, "backlog", f"leasehold, {label}", style, "us_per_item")
    for who, (label, colour) in REFERENCES.items():
        its = [row for row in rows if row.who == who]
        line(plot, its, "backlog", label, "--", "us_per_item", colour)
    plot.set(xlabel="waiting items", ylabel="µs per item", ylim=(0, None))


def by_flight(cost: str) -> Callable[[Any, Rows], None]:
    """Draw the cost of a completion by the number of items in flight."""

    def draw(plot: Any, rows: Rows) -> None:
        for order in dict.fromkeys(row.setting["order"] for row in rows):
            its = [row for row in rows if row.setting["order"] == order]
            line(plot, its, "in_flight", str(order), "o-", cost)
        plot.set(xlabel="items in flight", ylabel="µs per call", ylim=(0, None))

    return draw


def server_cost(plot: Any, rows: Rows) -> None:
    """Draw the server's µs per item, by step and by target."""
    ends = {"bare": 0.0, "ceiling": float("inf")}
    rows = sorted(rows, key=lambda row: ends.get(row.who, row.setting.get("coroutines", 0)))
    groups = {
        what: [row.more["script_us_per_item"] for row in rows if row.what == what]
        for what in PHASES
        if any(row.what == what for row in rows)
    }
    ticks = [
        f"{row.setting['coroutines']:,}\ncoroutines" if row.who == "leasehold" else row.who
        for row in rows
        if row.what == "add"
    ]
    grouped_bars(plot, groups, ticks, "{:.1f}")


def memory(plot: Any, rows: Rows) -> None:
    """Draw the memory of an item without its payload."""
    payloads = sorted({int(row.setting["payload"]) for row in rows})
    found = {(row.what, row.setting["payload"]): row.value for row in rows}
    groups = {
        what: [found[what, payload] - payload for payload in payloads]
        for what in dict.fromkeys(row.what for row in rows)
    }
    grouped_bars(plot, groups, [f"{payload:,} bytes" for payload in payloads])


def restarts(plot: Any, rows: Rows) -> None:
    """Draw each measured time."""
    for row in rows:
        away = [str(row.setting["away"])] * len(row.samples)
        plot.plot(away, row.samples, "o", color="tab:blue", alpha=0.6)
    plot.set(xlabel="the server was away for", ylabel="ms until a handler started", ylim=(0, None))


def table_growth(plot: Any, rows: Rows) -> None:
    """Draw the cost of a row in Spark by the size of the table."""
    for what in dict.fromkeys(row.what for row in rows):
        its = [row for row in rows if row.what == what]
        line(plot, its, "rows", what, "o-", "us_per_item")
        line(plot, its, "rows", f"{what}: server", "s--", "script_us_per_item")
    plot.set(xlabel="rows", ylabel="µs per row", yscale="log")


def drains(plot: Any, rows: Rows) -> None:
    """Draw rows per second by the size of a batch."""
    for what in dict.fromkeys(row.what for row in rows):
        line(plot, [row for row in rows if row.what == what], "batch", what, "o-")
    plot.set(xlabel="items in a batch", ylabel="rows/s", ylim=(0, None))


def libraries(plot: Any, rows: Rows) -> None:
    """Draw a bar per library."""
    values = [row.value for row in rows]
    colours = ["tab:blue" if row.setting["ours"] == "yes" else "tab:gray" for row in rows]
    its = plot.barh([row.who.replace(", ", "\n") for row in rows], values, color=colours)
    plot.bar_label(its, fmt="{:,.3g}" if max(values) < 100 else "{:,.0f}", fontsize=7, padding=2)
    plot.invert_yaxis()
    plot.margins(x=0.2)
    plot.tick_params(labelsize=8)


SPARK_LABELS = {
    ("leasehold", "add"): 'format("leasehold")',
    ("ceiling", "add"): "a plain process,\n1,000 a call",
    ("ceiling", "add (add_items)"): "the same,\nadd_items",
    ("bare", "add"): "foreachPartition,\na redis-py pipeline",
}


def _of(scenario: str, **attributes: object) -> Callable[[Row], bool]:
    """Choose the rows of a scenario with these attributes or settings."""

    def chosen(row: Row) -> bool:
        values = {**row.setting, "what": row.what, "who": row.who, "unit": row.unit}
        return row.scenario == scenario and attributes.items() <= values.items()

    return chosen


FIGURES = {
    "queue": [
        Figure(
            "throughput.png",
            "Items per second by coroutines in one process (100 bytes)",
            [
                Panel(what, by_coroutines, _of(scenario, what=what, payload=100))
                for scenario, what in (*(("throughput", phase) for phase in PHASES), ("cycle", "cycle"))
            ],
        ),
        Figure(
            "payload.png",
            "Whole cycles per second by payload",
            [Panel("", by_payload, _of("cycle"), ylabel="cycles/s", yscale="log")],
        ),
        Figure(
            "backlog.png",
            "µs per item by backlog",
            [Panel(what, by_backlog, _of("backlog", what=what)) for what in PHASES],
            columns=3,
        ),
        Figure(
            "flight.png",
            "One complete, by items in flight",
            [
                Panel(
                    "µs per call", by_flight("us_per_item"), _of("flight", what="complete", who="leasehold")
                ),
                Panel(
                    "server µs per call",
                    by_flight("script_us_per_item"),
                    _of("flight", what="complete", who="leasehold"),
                ),
            ],
        ),
        Figure(
            "cost.png",
            "Server µs in scripts per item (100 bytes)",
            [Panel("", server_cost, _of("throughput", payload=100), ylabel="µs per item", yscale="log")],
        ),
        Figure(
            "latency.png",
            "From add_item to the lease, on an idle queue",
            [Panel("", shares(lambda row: f"{row.who}: {row.what}"), _of("latency"))],
        ),
        Figure(
            "kill.png",
            "From the expiry of a killed worker's lease to the next lease",
            [Panel("", shares(lambda row: f"waiter {row.setting['waiter']}"), _of("kill"), xscale="log")],
        ),
        Figure(
            "memory.png",
            "Server memory per item beyond its payload (id of 32 characters)",
            [Panel("", memory, _of("memory"), ylabel="bytes per item")],
        ),
    ],
    "worker": [
        Figure(
            "worker.png",
            "The worker",
            [
                Panel(
                    "Items per second in one process", bars, _of("worker", unit="items/s"), ylabel="items/s"
                ),
                Panel(
                    "Where the time of a job goes",
                    horizontal_bars(2),
                    _of("worker", unit="µs/job"),
                    xlabel="µs per job",
                ),
                Panel(
                    "An idle worker",
                    shares(lambda row: row.what),
                    _of("worker_idle", unit="ms"),
                    xscale="log",
                ),
                Panel("After the server was killed", restarts, _of("worker_restart")),
            ],
        )
    ],
    "rivals": [
        Figure(
            "rivals.png",
            "One worker process, one server",
            [
                Panel("add one, 1/s (more is better)", libraries, _of("one", what="one_per_s")),
                Panel("add many, 1/s (more is better)", libraries, _of("drain", what="bulk_per_s")),
                Panel("no-op jobs, 1/s (more is better)", libraries, _of("drain", what="drain_per_s")),
                Panel(
                    "50 ms jobs, of ideal (more is better)", libraries, _of("fifty", what="fifty_of_ideal")
                ),
                Panel("idle p50 ms (less is better)", libraries, _of("idle", what="idle_p50_ms")),
                Panel("idle p99 ms (less is better)", libraries, _of("idle", what="idle_p99_ms")),
            ],
            columns=3,
        )
    ],
    "spark": [
        Figure(
            "spark.png",
            "Spark",
            [
                Panel("Bulk add", bars, _of("bulk_add"), ylabel="rows/s"),
                Panel("Snapshot", bars, _of("snapshot", unit="rows/s"), ylabel="rows/s"),
                Panel("As the table grows", table_growth, _of("growth")),
                Panel("Draining by batch", drains, _of("drain", unit="rows/s")),
                Panel("A micro-batch", horizontal_bars(0), _of("drain", unit="ms"), xlabel="ms"),
            ],
        )
    ],
}
