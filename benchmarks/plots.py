"""The plots: a figure per file, with a panel for each group of rows that was measured."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.measure import Row

    Rows = Sequence[Row]
    Draw = Callable[[Any, Rows], None]

mpl.use("Agg")

REFERENCES = {"bare": ("bare, one at a time", "tab:gray"), "ceiling": ("ceiling, 500 a call", "tab:red")}
PHASES = ("add", "lease", "complete")


class Panel:
    """One plot of a figure: of the rows of a scenario that have some attributes or settings."""

    def __init__(self, file: str, title: str, draw: Draw, scenario: str, **chosen: object) -> None:
        self.file = f"{file}.png"
        self.title = title
        self.draw = draw
        self._chosen = {"scenario": scenario, **chosen}

    def rows(self, rows: Rows) -> Rows:
        """Return the rows that the panel shows; without any it is left out."""

        def shown(row: Row) -> bool:
            values = {**vars(row), **row.setting}
            return all(values.get(name) == value for name, value in self._chosen.items())

        return list(filter(shown, rows))


def draw(report: str, rows: Rows, folder: Path) -> list[str]:
    """Draw the figures of a report; return the names of the files."""
    figures: dict[str, list[tuple[Panel, Rows]]] = {}
    for panel in PANELS[report]:
        if its := panel.rows(rows):
            figures.setdefault(panel.file, []).append((panel, its))
    for file, panels in figures.items():
        columns = min(3 if file in ("backlog.png", "rivals.png") else 2, len(panels))
        lines = -(-len(panels) // columns)
        size = (5.2 * columns + 0.6, 3.8 * lines + 0.5)
        canvas, plots = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
        canvas.suptitle(TITLES[file])
        for plot in plots.flat[len(panels) :]:
            plot.set_visible(False)
        for plot, (panel, its) in zip(plots.flat, panels, strict=False):
            panel.draw(plot, its)
            plot.set(title=panel.title)
            plot.grid(visible=True, alpha=0.3)
            if plot.get_legend_handles_labels()[0]:
                plot.margins(y=0.25)
                plot.legend(fontsize="small", ncols=2)
        canvas.savefig(folder / file, dpi=110)
        plt.close(canvas)
    return list(figures)


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


def lines(by: str, group: Callable[[Row], object], *costs: str, **axes: object) -> Draw:
    """Draw a line per group of rows, by one value of their setting, for each cost or for the value."""

    def draw(plot: Any, rows: Rows) -> None:
        for label in dict.fromkeys(map(group, rows)):
            its = [row for row in rows if group(row) == label]
            for style, cost in zip(("o-", "s--"), costs or ("",), strict=False):
                line(plot, its, by, f"{label}: server" if style == "s--" else f"{label}", style, cost)
        plot.set(xlabel=by.replace("_", " "), **axes)

    return draw


def beside_references(by: str, cost: str, **axes: object) -> Draw:
    """Draw the queue by one value of its setting, and the references as dashed lines."""

    def draw(plot: Any, rows: Rows) -> None:
        ours = [row for row in rows if row.who == "leasequeue"]
        if by == "coroutines":
            line(plot, ours, by, "leasequeue", cost=cost)
        else:
            for label, coroutines, style in (("alone", 1, "o-"), ("500 at once", 500, "s-")):
                its = [row for row in ours if row.setting["coroutines"] == coroutines]
                line(plot, its, by, f"leasequeue, {label}", style, cost)
        for who, (label, colour) in REFERENCES.items():
            its = [row for row in rows if row.who == who]
            if by == "coroutines":
                plot.axhline(its[0].value, label=label, color=colour, linestyle="--")
            else:
                line(plot, its, by, label, "--", cost, colour)
        plot.set(xlabel=by, **axes)

    return draw


def bars(plot: Any, rows: Rows) -> None:
    """Draw a bar per row, the first at the top; references and other libraries are gray."""
    values = [row.value for row in rows]
    by_who = len({row.what for row in rows}) == 1
    names = [row.who.replace(", ", "\n") if by_who else row.what for row in rows]
    names = [SPARK_LABELS.get((row.who, row.what), name) for row, name in zip(rows, names, strict=True)]
    references = ("whole cycle", "lease, complete")
    gray = [row.what in references or (by_who and not row.who.startswith("leasequeue")) for row in rows]
    colours = ["tab:gray" if one else "tab:blue" for one in gray]
    its = plot.barh([name.removeprefix("server: ") for name in names], values, color=colours)
    plot.bar_label(its, fmt="{:,.3g}" if max(values) < 100 else "{:,.0f}", fontsize=7, padding=2)
    plot.tick_params(axis="y", labelsize=7)
    plot.margins(x=0.2)
    plot.invert_yaxis()
    plot.set(xlabel=rows[0].unit)


def grouped_bars(
    tick: Callable[[Row], str], label: Callable[[Row], str], value: Callable[[Row], float], **axes: object
) -> Draw:
    """Draw a group of columns per tick, one of each label that has a row at every tick."""

    def draw(plot: Any, rows: Rows) -> None:
        found = {(label(row), tick(row)): value(row) for row in rows}
        ticks = [*dict.fromkeys(map(tick, rows))]
        names = [name for name in dict.fromkeys(map(label, rows)) if all((name, at) in found for at in ticks)]
        width = 0.8 / len(names)
        for place, name in enumerate(names):
            values = [found[name, at] for at in ticks]
            its = plot.bar([at + width * place for at in range(len(ticks))], values, width=width, label=name)
            plot.bar_label(its, fmt="{:,.1f}" if max(values) < 200 else "{:,.0f}", fontsize=7)
        plot.set_xticks([at + 0.4 - width / 2 for at in range(len(ticks))], ticks, fontsize=8)
        plot.set(**axes)

    return draw


def shares(label: Callable[[Row], str], scale: str) -> Draw:
    """Draw which share of the samples takes at most how long."""

    def draw(plot: Any, rows: Rows) -> None:
        for row in rows:
            percent = [100 * (at + 1) / len(row.samples) for at in range(len(row.samples))]
            plot.step(sorted(row.samples), percent, label=label(row))
        plot.set(xlabel="ms", ylabel="% that take at most this", ylim=(0, 101), xscale=scale)

    return draw


def restarts(plot: Any, rows: Rows) -> None:
    """Draw each measured time."""
    for row in rows:
        away = [str(row.setting["away"])] * len(row.samples)
        plot.plot(away, row.samples, "o", color="tab:blue", alpha=0.6)
    plot.set(xlabel="the server was away for", ylabel="ms until a handler started", ylim=(0, None))


def dots(cost: str, goal: float, **axes: object) -> Draw:
    """Draw a line per load with a dot for each rule, and the goal."""

    def draw(plot: Any, rows: Rows) -> None:
        rows = [row for row in rows if not row.who.endswith("int32")]  # one worker, for all that is wanted
        loads = [*dict.fromkeys(row.what for row in rows)]
        for style, who in zip(
            ("o", "s", "x", "^", "|"), dict.fromkeys(row.who for row in rows), strict=False
        ):
            its = [row for row in rows if row.who == who]
            values = [row.more[cost] if cost else row.value for row in its]
            plot.plot(
                values, [loads.index(row.what) for row in its], style, label=who, markersize=5, alpha=0.8
            )
        plot.axvline(goal, color="tab:gray", linestyle="--")
        plot.set_yticks(range(len(loads)), loads, fontsize=7)
        plot.set(ylim=(len(loads) - 0.5, -0.5), **axes)

    return draw


def over_time(plot: Any, rows: Rows) -> None:
    """Draw the workers of each rule over time."""
    for row in rows:
        hours = float(row.setting["hours"])
        at = [hours * place / (len(row.samples) - 1) for place in range(len(row.samples))]
        style = "k--" if row.who == "by hindsight" else "-"
        plot.plot(at, row.samples, style, label=row.who, linewidth=1)
    plot.set(xlabel="hours", ylabel="workers ready", ylim=(0, None))


SPARK_LABELS = {
    ("leasequeue", "add"): 'format("leasequeue")',
    ("ceiling", "add"): "a plain process,\n1,000 a call",
    ("ceiling", "add (add_items)"): "the same,\nadd_items",
    ("bare", "add"): "foreachPartition,\na redis-py pipeline",
}
TITLES = {
    "throughput.png": "Items per second by coroutines in one process (100 bytes)",
    "payload.png": "Whole cycles per second by payload",
    "backlog.png": "µs per item by backlog",
    "flight.png": "One complete, by items in flight",
    "cost.png": "Server µs in scripts per item (100 bytes)",
    "latency.png": "From add_item to the lease, on an idle queue",
    "kill.png": "From the expiry of a killed worker's lease to the next lease",
    "memory.png": "Server memory per item beyond its payload (id of 32 characters)",
    "worker.png": "The worker",
    "core.png": "Many queues, the bare path, and a log on disk",
    "tasks.png": "Tasks beside plain items, and 10,000 callers that wait for results",
    "flows.png": "Flows",
    "autoscale.png": "Rules of autoscaling on simulated loads",
    "rivals.png": "One worker process, one server",
    "spark.png": "Spark",
}
_speeds = beside_references("coroutines", "", ylabel="items/s", yscale="log")
_backlog = beside_references("backlog", "us_per_item", ylabel="µs per item", ylim=(0, None))
_order, _what = (lambda row: row.setting["order"]), (lambda row: row.what)
_who = attrgetter("who")


def _payload(row: Row) -> str:
    return f"{row.setting['payload']:,} bytes"


def _target(row: Row) -> str:
    return f"{row.setting['coroutines']:,} coroutines" if "coroutines" in row.setting else row.who


def _idle(row: Row) -> str:
    return f"{row.who}, {row.setting['queues']} queues" if row.who == "leasequeue" else "bare path"


_cpu = lines(
    "queues", _what, "client_cpu_us_per_item", "server_cpu_us_per_item", ylabel="µs per job", yscale="log"
)
_durable = grouped_bars(
    lambda row: row.what if row.who == "leasequeue" else f"{row.what}, {row.who}",
    lambda row: f"appendfsync {row.setting['appendfsync']}",
    lambda row: row.value,
    yscale="log",
)
_no_op = grouped_bars(
    lambda row: f"results {row.setting['results']}",
    lambda row: str(row.setting["kind"]),
    lambda row: row.value,
    ylabel="jobs/s",
)
_by_payload = grouped_bars(_payload, _target, lambda row: row.value, ylabel="cycles/s", yscale="log")
_cost = grouped_bars(
    lambda row: _target(row).replace(" ", "\n"),
    _what,
    lambda row: row.more["script_us_per_item"],
    ylabel="µs per item",
    yscale="log",
)
_memory = grouped_bars(
    _payload, _what, lambda row: row.value - float(row.setting["payload"]), ylabel="bytes per item"
)
_child = lines(
    "children", _who, "us_per_item", "server_cpu_us_per_item", ylabel="µs per child", ylim=(0, None)
)
_longest = lines("children", _who, ylabel="ms", ylim=(0, None))
_kept = dots("", 99, xlabel="% of the items", xlim=(0, 102))
_spent = dots(
    "x_fewest", 1.2, xlabel="worker-seconds, as a multiple of the fewest", xscale="log", xlim=(0.6, 15)
)
_flight = {"what": "complete", "who": "leasequeue"}
PANELS = {
    "queue": [
        *(Panel("throughput", what, _speeds, "throughput", what=what, payload=100) for what in PHASES),
        Panel("throughput", "cycle", _speeds, "cycle", payload=100),
        Panel("payload", "", _by_payload, "cycle"),
        *(Panel("backlog", what, _backlog, "backlog", what=what) for what in PHASES),
        *(
            Panel("flight", title, lines("in_flight", _order, cost, ylim=(0, None)), "flight", **_flight)
            for title, cost in (("µs per call", "us_per_item"), ("server µs per call", "script_us_per_item"))
        ),
        Panel("cost", "", _cost, "throughput", payload=100),
        Panel("latency", "", shares(lambda row: f"{row.who}: {row.what}", "linear"), "latency"),
        Panel("kill", "", shares(lambda row: f"waiter {row.setting['waiter']}", "log"), "kill"),
        Panel("memory", "", _memory, "memory"),
    ],
    "worker": [
        Panel("worker", "Items per second in one process", bars, "worker", unit="items/s"),
        Panel("worker", "Time of a job; commands are inside scripts", bars, "worker", unit="µs/job"),
        Panel("worker", "An idle worker", shares(_what, "log"), "worker_idle", unit="ms"),
        Panel("worker", "After the server was killed", restarts, "worker_restart"),
    ],
    "kills": [],
    "service": [],
    "start": [],
    "telemetry": [],
    "extras": [],
    "outbox": [],
    "core": [
        *(
            Panel("core", f"CPU µs per job, {at:,} at once", _cpu, "many", concurrency=at)
            for at in (100, 1_000)
        ),
        Panel("core", "An idle worker", shares(_idle, "log"), "idle_worker"),
        Panel("core", "Items per second", _durable, "durable"),
    ],
    "tasks": [
        Panel("tasks", "Jobs that do nothing, per second", _no_op, "tasks", unit="items/s"),
        Panel("tasks", "Round trip of a task", shares(_what, "log"), "tasks", unit="ms"),
        Panel("tasks", "From completion to wake-up", shares(_what, "log"), "waiters", unit="ms"),
    ],
    "flows": [
        Panel("flows", "Hand-overs/s of chains of 10 stages", bars, "flows", what="hand-overs of chains"),
        Panel("flows", "From the last of 10 children to the join", shares(_who, "log"), "flows", unit="ms"),
        Panel("flows", "Fan-out and join", _child, "flows", what="fan-out and join"),
        Panel("flows", "The longest script call", _longest, "flows", what="longest script call"),
    ],
    "autoscale": [
        *(
            Panel("autoscale", f"{title}, {which}", draws, "autoscale", set=which)
            for which in ("tuned on", "held out")
            for title, draws in (("Begun within the target", _kept), ("Workers", _spent))
        ),
        *(
            Panel("autoscale", load, over_time, "autoscale", what=f"workers ready, {load}")
            for load in ("unannounced jump", "bursts", "a day", "feeding queues")
        ),
    ],
    "rivals": [
        Panel("rivals", "add one, 1/s (more is better)", bars, "one", what="one_per_s"),
        Panel("rivals", "add many, 1/s (more is better)", bars, "drain", what="bulk_per_s"),
        Panel("rivals", "no-op jobs, 1/s (more is better)", bars, "drain", what="drain_per_s"),
        Panel("rivals", "50 ms jobs, of ideal (more is better)", bars, "fifty"),
        Panel("rivals", "idle p50 ms (less is better)", bars, "idle", what="idle_p50_ms"),
        Panel("rivals", "idle p99 ms (less is better)", bars, "idle", what="idle_p99_ms"),
        Panel("rivals", "add to result, p50 ms (less is better)", bars, "result", what="result_p50_ms"),
        Panel("rivals", "add to result, p99 ms (less is better)", bars, "result", what="result_p99_ms"),
    ],
    "spark": [
        Panel("spark", "Bulk add", bars, "bulk_add"),
        Panel("spark", "Snapshot", bars, "snapshot", unit="rows/s"),
        Panel(
            "spark",
            "As the table grows",
            lines("rows", _what, "us_per_item", "script_us_per_item", ylabel="µs per row", yscale="log"),
            "growth",
            who="leasequeue",
        ),
        Panel(
            "spark",
            "Draining by batch",
            lines("batch", _what, ylabel="rows/s", ylim=(0, None)),
            "drain",
            unit="rows/s",
        ),
        Panel("spark", "A micro-batch", bars, "drain", unit="ms"),
    ],
}
