"""The plots: what a row of numbers does not show at a glance."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.rows import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.rows import Row, Who

mpl.use("Agg")

REFERENCES: dict[Who, tuple[str, str]] = {
    "bare": ("bare, one at a time", "tab:gray"),
    "ceiling": ("ceiling, 500 a call", "tab:red"),
}


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """Draw what was measured; return the names of the files."""
    plots = {
        "throughput.png": by_coroutines,
        "payload.png": by_payload,
        "backlog.png": by_backlog,
        "flight.png": by_flight,
        "cost.png": server_cost,
        "latency.png": latency,
        "kill.png": kills,
        "memory.png": memory,
    }
    return [name for name, plot in plots.items() if plot(rows, folder / name)]


@contextmanager
def figure(path: Path, title: str, columns: int = 1, lines: int = 1) -> Iterator[list[Any]]:
    """Panels to draw on; written when the block ends."""
    canvas, panels = plt.subplots(
        lines, columns, figsize=(5.2 * columns + 0.6, 3.8 * lines + 0.5), squeeze=False, layout="constrained"
    )
    canvas.suptitle(title)
    yield list(panels.flat)
    for panel in panels.flat:
        panel.grid(visible=True, alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.margins(y=0.25)
            panel.legend(fontsize="small", ncols=2)
    canvas.savefig(path, dpi=110)
    plt.close(canvas)


def by_coroutines(rows: Sequence[Row], path: Path) -> bool:
    """Items per second by the number of coroutines, beside the references."""
    kinds = {"add": "throughput", "lease": "throughput", "complete": "throughput", "cycle": "cycle"}
    kinds = {
        what: scenario for what, scenario in kinds.items() if any(row.scenario == scenario for row in rows)
    }
    if not kinds:
        return False
    with figure(
        path, "Items per second by coroutines in one process (100 bytes)", 2, -(-len(kinds) // 2)
    ) as panels:
        for panel, (what, scenario) in zip(panels, kinds.items(), strict=False):
            ours = [
                row
                for row in rows
                if (row.scenario, row.what, row.who) == (scenario, what, "leasehold")
                and row.setting["payload"] == 100
            ]
            line(panel, ours, "coroutines", "leasehold")
            for who, (label, colour) in REFERENCES.items():
                reference = find(rows, scenario, what, who, {"payload": 100})
                if reference:
                    panel.axhline(reference.value, label=label, color=colour, linestyle="--")
            panel.set(title=what, xlabel="coroutines", ylabel="items/s", yscale="log")
        for panel in panels[len(kinds) :]:
            panel.set_visible(False)
    return True


def by_payload(rows: Sequence[Row], path: Path) -> bool:
    """The whole cycle by payload."""
    found = [row for row in rows if row.scenario == "cycle"]
    if not found:
        return False
    labels = {
        "bare": "bare, one at a time",
        "1": "one coroutine",
        "1000": "1,000 coroutines",
        "ceiling": "ceiling",
    }
    payloads = sorted({int(row.setting["payload"]) for row in found})
    with figure(path, "Whole cycles per second by payload") as [panel]:
        for shift, (key, label) in enumerate(labels.items()):
            values = [
                next(
                    row.value
                    for row in found
                    if row.setting["payload"] == payload
                    and key in (row.who, str(row.setting.get("coroutines")))
                )
                for payload in payloads
            ]
            bars = panel.bar(
                [at + 0.2 * shift for at in range(len(payloads))], values, width=0.2, label=label
            )
            panel.bar_label(bars, fmt="{:,.0f}", fontsize=7)
        panel.set_xticks(
            [at + 0.3 for at in range(len(payloads))], [f"{payload:,} bytes" for payload in payloads]
        )
        panel.set(ylabel="cycles/s", yscale="log")
    return True


def by_backlog(rows: Sequence[Row], path: Path) -> bool:
    """What an item costs by the number that wait."""
    found = [row for row in rows if row.scenario == "backlog"]
    if not found:
        return False
    with figure(path, "µs per item by backlog", 3) as panels:
        for panel, what in zip(panels, ("add", "lease", "complete"), strict=True):
            ours = [row for row in found if row.what == what]
            for label, coroutines, style in (("alone", 1, "o-"), ("500 at once", 500, "s-")):
                its = [row for row in ours if row.setting.get("coroutines") == coroutines]
                line(panel, its, "backlog", f"leasehold, {label}", style, "us_per_item")
            for who, (label, colour) in REFERENCES.items():
                its = [row for row in ours if row.who == who]
                line(panel, its, "backlog", label, "--", "us_per_item", colour)
            panel.set(
                title=what, xlabel="items that wait", ylabel="µs per item", xscale="log", ylim=(0, None)
            )
    return True


def by_flight(rows: Sequence[Row], path: Path) -> bool:
    """What a complete costs by the number in flight."""
    found = [
        row for row in rows if row.scenario == "flight" and row.what == "complete" and row.who == "leasehold"
    ]
    if not found:
        return False
    with figure(path, "One complete, by items in flight", 2) as panels:
        for panel, (cost, label) in zip(
            panels,
            {"us_per_item": "µs per call", "script_us_per_item": "server µs per call"}.items(),
            strict=True,
        ):
            for order in dict.fromkeys(row.setting["order"] for row in found):
                its = [row for row in found if row.setting["order"] == order]
                line(panel, its, "in_flight", str(order), "o-", cost)
            panel.set(xlabel="items in flight", ylabel=label, ylim=(0, None))
    return True


def server_cost(rows: Sequence[Row], path: Path) -> bool:
    """Server µs per item by step and by who calls."""
    found = [row for row in rows if row.scenario == "throughput" and row.setting["payload"] == 100]
    if not found:
        return False
    with figure(path, "Server µs in scripts per item (100 bytes)") as [panel]:
        for shift, what in enumerate(("add", "lease", "complete")):
            its = sorted((row for row in found if row.what == what), key=places)
            values = [row.more["script_us_per_item"] for row in its]
            bars = panel.bar([at + 0.27 * shift for at in range(len(its))], values, width=0.27, label=what)
            panel.bar_label(bars, fmt="{:.1f}", fontsize=7)
        names = [
            f"{row.setting['coroutines']:,}\ncoroutines" if row.who == "leasehold" else row.who
            for row in sorted((row for row in found if row.what == "add"), key=places)
        ]
        panel.set_xticks([at + 0.27 for at in range(len(names))], names, fontsize=8)
        panel.set(ylabel="µs per item", yscale="log")
    return True


def places(row: Row) -> float:
    """Where a bar stands: the bare loop on the left, the ceiling on the right."""
    return {"bare": 0.0, "ceiling": float("inf")}.get(row.who) or float(row.setting.get("coroutines", 0))


def latency(rows: Sequence[Row], path: Path) -> bool:
    """How long after add_item a waiter has the item."""
    found = [row for row in rows if row.scenario == "latency"]
    return bool(found) and shares(
        path,
        "From add_item to the lease, on an idle queue",
        {f"{row.who}: {row.what}": row.samples for row in found},
        "linear",
    )


def kills(rows: Sequence[Row], path: Path) -> bool:
    """How long after its lease a killed worker's item is leased again."""
    found = [row for row in rows if row.scenario == "kill"]
    return bool(found) and shares(
        path,
        "From the end of a killed worker's lease to the next lease",
        {f"waiter {row.setting['waiter']}": row.samples for row in found},
        "log",
    )


def shares(path: Path, title: str, kinds: dict[str, list[float]], scale: str) -> bool:
    """Which share of the measurements took so long at most."""
    with figure(path, title) as [panel]:
        for label, samples in kinds.items():
            panel.step(
                sorted(samples), [100 * (at + 1) / len(samples) for at in range(len(samples))], label=label
            )
        panel.set(xlabel="ms", ylabel="% of all, at most so long", xscale=scale, ylim=(0, 101))
    return True


def memory(rows: Sequence[Row], path: Path) -> bool:
    """What an item takes, beyond its payload."""
    found = [row for row in rows if row.scenario == "memory"]
    if not found:
        return False
    payloads = sorted({int(row.setting["payload"]) for row in found})
    with figure(path, "Server memory per item beyond its payload (id of 32 characters)") as [panel]:
        for shift, what in enumerate(dict.fromkeys(row.what for row in found)):
            its = {int(row.setting["payload"]): row.value for row in found if row.what == what}
            values = [its[payload] - payload for payload in payloads]
            bars = panel.bar(
                [at + 0.27 * shift for at in range(len(payloads))], values, width=0.27, label=what
            )
            panel.bar_label(bars, fmt="{:.0f}", fontsize=7)
        panel.set_xticks(
            [at + 0.27 for at in range(len(payloads))], [f"{payload:,} bytes" for payload in payloads]
        )
        panel.set(ylabel="bytes per item")
    return True


def line(
    panel: Any,
    rows: Sequence[Row],
    by: str,
    label: str,
    style: str = "o-",
    cost: str = "",
    colour: str | None = None,
) -> None:
    """A line through rows, by one value of their setting."""
    points = sorted((float(row.setting[by]), row.more[cost] if cost else row.value) for row in rows)
    if points:
        panel.plot(*zip(*points, strict=True), style, label=label, color=colour)
        sizes = [size for size, _ in points]
        panel.set_xscale("log")
        panel.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        panel.minorticks_off()
