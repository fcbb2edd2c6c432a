"""Charts of the history of a queue, drawn as SVG: what is not over is dashed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.views import HistoryCell

#: The size of a chart, in its units.
_WIDTH, _HEIGHT = 720, 120
#: The names of the seven bins of `HistoryCell.BOUNDS`.
BINS = ("10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min", "longer")
_FORMATS = ((86_400, "%d %b %Y"), (3_600, "%d %b %H:00"), (0, "%H:%M"))


def cell_time(cell: HistoryCell) -> str:
    """Return when a cell began, by UTC, as exact as it is long."""
    form = next(form for seconds, form in _FORMATS if cell.seconds >= seconds)
    return datetime.fromtimestamp(cell.start, UTC).strftime(form)


def history_chart(cells: Sequence[HistoryCell], *, small: bool = False) -> Markup:
    """Return completed and failed attempts as bars; unless it is small, also the oldest age as a line."""
    highest = max(1, *(one.completed + one.failed for one in cells))
    oldest = max(one.oldest_age for one in cells) or 1.0
    slot = _WIDTH / len(cells)
    bars, points = [], []
    for at, one in enumerate(cells):
        text = f"{cell_time(one)}: {one.completed:,} completed, {one.failed:,} failed"
        text += f", the oldest waited for {one.oldest_age:,.0f} s" if one.oldest_age else ""
        top, drawn = float(_HEIGHT), Markup()
        for kind, value in (("done", one.completed), ("failing", one.failed)):
            size = value / highest * (_HEIGHT - 4)
            top -= size
            if value:
                drawn += Markup(
                    '<rect class="{}{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>'
                ).format(kind, "" if one.over else " now", (at + 0.15) * slot, top, 0.7 * slot, size)
        if drawn:
            bars.append(Markup("<g><title>{}</title>{}</g>").format(text, drawn))
        points.append(f"{(at + 0.5) * slot:.1f},{_HEIGHT - 2 - one.oldest_age / oldest * (_HEIGHT - 8):.1f}")
    line = Markup()
    if not small and any(one.oldest_age for one in cells):
        line = Markup('<polyline class="age" points="{}"/><polyline class="age now" points="{}"/>').format(
            " ".join(points[:-1]), " ".join(points[-2:])
        )
    completed, failed = sum(one.completed for one in cells), sum(one.failed for one in cells)
    text = f"From {cell_time(cells[0])} UTC until now: {completed:,} completed, {failed:,} failed"
    if not small:
        text += f"; the oldest item waited for {max(one.oldest_age for one in cells):,.0f} s"
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "<desc>{}</desc>{}{}</svg>"
    ).format("spark bars" if small else "bars", _WIDTH, _HEIGHT, text, text, Markup().join(bars), line)


def bins_of(cells: Sequence[HistoryCell], field: str) -> list[int]:
    """Return how many runs or waits of all cells fell into each bin."""
    return [sum(counts) for counts in zip(*(getattr(one, field) for one in cells), strict=True)]


def histogram(counts: Sequence[int], label: str) -> Markup:
    """Return a bar for each bin."""
    highest = max(1, *counts)
    bars = Markup().join(
        Markup(
            '<rect class="done" x="{}" y="{:.1f}" width="84" height="{:.1f}"><title>{}: {}</title></rect>'
        ).format(at * 100 + 8, 100 - count / highest * 96, count / highest * 96, name, f"{count:,}")
        for at, (name, count) in enumerate(zip(BINS, counts, strict=True))
    )
    text = f"{label}: " + ", ".join(f"{name} {count:,}" for name, count in zip(BINS, counts, strict=True))
    return Markup(
        '<svg class="bars" viewBox="0 0 700 100" preserveAspectRatio="none" role="img" aria-label="{}">'
        "<desc>{}</desc>{}</svg>"
    ).format(text, text, bars)


def share_text(counts: Sequence[int], share: float) -> str:
    """Return within which bound a share of what was counted fell; empty if nothing was."""
    wanted, seen = share * sum(counts), 0
    for name, count in zip(BINS, counts, strict=True):
        seen += count
        if count and seen >= wanted:
            return f"{share:.0%} over {BINS[-2]}" if name == BINS[-1] else f"{share:.0%} within {name}"
    return ""
