"""The overview: all queues, with what stands out first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.dashboard.view import Page, checked_query

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.dashboard.sampler import QueueHistory
    from leasequeue.dashboard.view import View

#: How many queues a page has.
ROWS = 50
#: What is sorted by, beside the name: what has more of it comes first.
_BY: dict[str, Callable[[QueueHistory], float]] = {
    "waiting": lambda one: one.stats.counts.waiting if one.stats else -1,
    "leased": lambda one: one.stats.counts.leased if one.stats else -1,
    "scheduled": lambda one: one.stats.counts.scheduled if one.stats else -1,
    "dead": lambda one: one.stats.counts.dead if one.stats else -1,
    "in": lambda one: one.rates[0] if one.rates else -1,
    "out": lambda one: one.rates[1] if one.rates else -1,
    "oldest": lambda one: one.stats.oldest_age if one.stats else -1,
    "workers": lambda one: one.stats.workers_alive if one.stats else -1,
}
COLUMNS = ("name", *_BY)


def needs_attention(one: QueueHistory) -> bool:
    """Return whether a queue has what a human should look at."""
    dead = bool(one.stats and one.stats.counts.dead)
    return one.is_unserved or one.stalled is not None or dead or bool(one.problem or one.away)


#: Which queues are shown.
_KEEP: dict[str, Callable[[QueueHistory], bool]] = {
    "all": lambda _: True,
    "attention": needs_attention,
    "busy": lambda one: bool(one.stats and one.stats.counts.total),
    "paused": lambda one: bool(one.stats and one.stats.paused),
}


async def read(view: View) -> dict[str, Any]:
    """Read no more than what the sampler has seen."""
    await view.seen()
    query = view.request.query_params
    sort = checked_query(query, "sort", COLUMNS)
    show = checked_query(query, "show", (*_KEEP,))
    reverse = query.get("order") == ("desc" if sort == "name" else "asc")
    wanted = query.get("find", "").strip().lower()
    seen = view.sampler.histories
    found = sorted(one for one in seen if wanted in one.lower() and _KEEP[show](seen[one]))
    if sort != "name":
        found.sort(key=lambda name: _BY[sort](seen[name]), reverse=not reverse)
    elif reverse:
        found.reverse()
    after = query.get("after", "")
    start = found.index(after) + 1 if after in found else 0
    rows = found[start : start + ROWS]
    await view.sampler.look(rows)
    shown = [seen[name] for name in rows]
    stats = [one.stats for one in seen.values() if one.stats]
    return {
        "rows": shown,
        "days": any(one.day for one in shown),
        "sort": sort,
        "order": query.get("order"),
        "show": show,
        "find": query.get("find", ""),
        "views": (*_KEEP,),
        "following": rows[-1] if start + ROWS < len(found) else None,
        "is_first": start == 0,
        "total": len(view.board.queues.by_name()),
        "matching": len(found),
        "sampled": len(stats),
        "complete": view.board.queues.complete,
        "sums": {
            "waiting": sum(one.counts.waiting for one in stats),
            "leased": sum(one.counts.leased for one in stats),
            "scheduled": sum(one.counts.scheduled for one in stats),
            "dead": sum(one.counts.dead for one in stats),
        },
        "attention": sum(map(needs_attention, seen.values())),
    }


PAGE = Page(path="/", template="overview.html", read=read, menu="Queues")
