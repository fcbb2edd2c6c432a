"""The autoscaler: the last report of each one whose queue the dashboard shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.autoscale.leader import PASS_ID, decode_state
from leasequeue.autoscale.report import read_report
from leasequeue.dashboard.view import Page

if TYPE_CHECKING:
    from leasequeue.autoscale.report import PassReport
    from leasequeue.dashboard.view import View
    from leasequeue.queue import AsyncWorkQueue

#: The queue of an autoscaler has one item, or a few by mistake; into so many such queues is looked.
MAX_ITEMS, MAX_QUEUES = 20, 100
#: Up to which size such an item is read (bytes): any program may have added one of this id.
MAX_BYTES = 1 << 20
#: For how long there must be no pass for that to stand out (s).
LATE_SECONDS = 180.0


async def read(view: View) -> dict[str, Any]:
    """Look into the queues that may be those of autoscalers."""
    seen = await view.seen()
    queues = view.board.queues.by_name()
    small = [
        queues[name]
        for name in sorted(queues)
        if name in seen and (stats := seen[name].stats) and 0 < stats.counts.total <= MAX_ITEMS
    ]
    found = await view.each(small[:MAX_QUEUES], _report_of, "autoscalers")
    reports = [(queue.name, report) for queue, report in found if report is not None]
    now = max((one.stats.at for one in seen.values() if one.stats), default=0.0)
    return {"reports": reports, "late_before": now - LATE_SECONDS}


async def _report_of(queue: AsyncWorkQueue) -> PassReport | None:
    item = await queue.find(PASS_ID, data=False)
    if item is not None and (item.size or 0) <= MAX_BYTES:
        item = await queue.find(PASS_ID)
    state, _ = decode_state(item.data or b"" if item else b"")
    return read_report(state.report, age=0.0)


PAGE = Page(path="/autoscaler", template="autoscaler.html", read=read, menu="Autoscaler")
