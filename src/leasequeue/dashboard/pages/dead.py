"""Dead letters: of one queue or of all, grouped by task and error, requeued and dropped.

A page begins at a dead letter, not at a number: what is added, requeued or dropped in between neither repeats
nor hides one. Its place in the list is found by a binary search.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from leasequeue.dashboard.action import Action, Question, Unfinished
from leasequeue.dashboard.pages.job import DONE
from leasequeue.dashboard.view import MAX_LINKED, Page, read_segment, segment
from leasequeue.errors import InvalidArgument, summary_of
from leasequeue.errors.describing import plain
from leasequeue.tasks.letters import LetterFilter
from leasequeue.tasks.wire import task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasequeue.dashboard.view import View
    from leasequeue.queue import AsyncWorkQueue, DeadLetter

    _Lists: TypeAlias = tuple[int, list[tuple[AsyncWorkQueue, list[DeadLetter]]]]

#: How many rows a page has, and how many groups.
ROWS, GROUPS = 50, 12
#: At how many dead letters a page looks, of all its queues together, and of how many queues.
LOOKED_AT, QUEUES = 300, 20
#: How many bytes of data a page reads; larger data is read only to compare its task.
MAX_BYTES, MAX_ONE_BYTES = 512 << 10, 64 << 10
#: At how many dead letters a step of an action looks, and at how many at once; and at how many queues.
STEP, AT_ONCE, STEP_QUEUES = 500, 50, 100


class Place(NamedTuple):
    """Where a dead letter is in the list of its queue; a newer one is greater."""

    died_ms: int
    id: bytes

    @classmethod
    def of(cls, letter: DeadLetter) -> Place:
        """Return the place of a dead letter."""
        return cls(round(letter.died_at * 1000), letter.id.encode(errors="surrogateescape"))

    @classmethod
    def read(cls, text: str) -> Place:
        """Return the place in a text that `str` made."""
        died_ms, _, item_id = text.partition(".")
        return cls(_number(died_ms), read_segment(item_id).encode(errors="surrogateescape"))

    def __str__(self) -> str:
        # Of an id that is too long for an address, its beginning: the place just before it, or nearly.
        return f"{self.died_ms}.{segment(self.id[:MAX_LINKED].decode(errors='surrogateescape'))}"


@dataclass(frozen=True)
class _Chosen:
    """Which dead letters are meant."""

    queue: str
    task: str
    error: str

    @classmethod
    def of(cls, given: Mapping[str, str]) -> _Chosen:
        return cls(
            read_segment(given.get("queue", "")),
            given.get("task", ""),
            given.get("error", "").strip(),
        )

    @property
    def filter(self) -> LetterFilter:
        return LetterFilter(task=self.task or None, error=self.error or None)

    @property
    def text(self) -> str:
        parts = [
            f" of '{plain(self.queue)}'" if self.queue else " of all queues",
            f", of the task '{plain(self.task)}'" * bool(self.task),
            f", with '{plain(self.error)}' in the error" * bool(self.error),
        ]
        return "".join(parts)


async def read(view: View) -> dict[str, Any]:
    """Read the next dead letters, and group them."""
    query = view.request.query_params
    chosen = _Chosen.of(query)
    counts = await _counts(view, chosen)
    names = sorted(counts, key=lambda name: (-counts[name], name))[:QUEUES]
    before = Place.read(query["before"]) if query.get("before") else None
    lists = await _lists(view, names, before)
    found, looked_at, following = await view.shared(
        ("dead", chosen, before, *names), lambda: _choose(lists, chosen)
    )
    groups = Counter((task_of(one.data or b""), _kind(one)) for _, one in found)
    examples = {(task_of(one.data or b""), _kind(one)): one for _, one in reversed(found)}
    return {
        "chosen": chosen,
        "counts": [(name, counts[name]) for name in names],
        "total": sum(counts.values()),
        "queues": len(counts),
        "rows": [(name, one, task_of(one.data or b""), summary_of(one.error)) for name, one in found[:ROWS]],
        "groups": [
            (task, kind, number, summary_of(examples[task, kind].error))
            for (task, kind), number in groups.most_common(GROUPS)
        ],
        "more_groups": max(0, len(groups) - GROUPS),
        "matching": len(found),
        "looked_at": looked_at,
        "following": following,
        "is_first": before is None,
    }


async def _counts(view: View, chosen: _Chosen) -> dict[str, int]:
    """Return how many dead letters the queues had when they were sampled last."""
    if chosen.queue:
        return {chosen.queue: stats.counts.dead if (stats := (await view.history(chosen.queue)).stats) else 0}
    seen = (await view.seen()).values()
    return {one.name: one.stats.counts.dead for one in seen if one.stats and one.stats.counts.dead}


def _kind(letter: DeadLetter) -> str:
    """Return what is the same in the errors of a group: the name of the exception, in most."""
    return summary_of(letter.error).partition(": ")[0][:100]


async def _lists(view: View, names: Sequence[str], before: Place | None) -> _Lists:
    """Return how many dead letters of each queue or shard are read, and those that are older than a place."""
    shards = [shard for name in names for shard in view.queue(name).shards]
    each = max(8, LOOKED_AT // max(1, len(shards)))
    return each, await view.each(shards, lambda queue: _newest(queue, before, each), "newest dead", before)


async def _choose(lists: _Lists, chosen: _Chosen) -> tuple[list[tuple[str, DeadLetter]], int, Place | None]:
    """Return the dead letters that match, at how many it has looked, and where the next page begins."""
    each, pages = lists
    # Of a queue of which more follow, no other queue may be read beyond its last one.
    floors = [Place.of(page[-1]) for _, page in pages if len(page) == each]
    floor = max(floors, default=None)
    looked_at = [
        (Place.of(one), queue.name, one, queue)
        for queue, page in pages
        for one in page
        if floor is None or Place.of(one) >= floor
    ]
    looked_at.sort(key=lambda row: row[:2], reverse=True)
    found = [
        (place, queue.whole.name, one)
        for place, _, one, queue in looked_at
        if await chosen.filter.choose(queue, [one])
    ]
    following = found[ROWS - 1][0] if len(found) > ROWS else floor
    return [(name, one) for _, name, one in found], len(looked_at), following


async def _newest(queue: AsyncWorkQueue, before: Place | None, count: int) -> list[DeadLetter]:
    """Return dead letters that are older than a place, the newest first."""
    start = 0 if before is None else await _rank(queue, lambda place: place >= before)
    return await _listed(queue, start, count)


async def _listed(queue: AsyncWorkQueue, start: int, count: int) -> list[DeadLetter]:
    """Return dead letters, the newest first, with data that is not large."""
    letters = await queue.dead_letters.list(start=start, count=count, max_bytes=MAX_BYTES)
    small = [one.id for one in letters[:ROWS] if one.data is None and one.size <= MAX_ONE_BYTES]
    read = {one.id: one for one in await asyncio.gather(*map(queue.dead_letters.get, small)) if one}
    return [read.get(one.id, one) for one in letters]


async def _rank(queue: AsyncWorkQueue, is_before: Callable[[Place], bool]) -> int:
    """Return to how many dead letters, of which the newest come first, `is_before` applies."""
    low, high = 0, await queue.dead_letters.count()
    while low < high:
        middle = (low + high) // 2
        found = await queue.dead_letters.list(start=middle, count=1, data=False)
        if found and is_before(Place.of(found[0])):
            low = middle + 1
        else:
            high = middle
    return low


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgument("form", text, "a number, as the page has it")
    return int(text)


def _selected(view: View) -> dict[str, list[str]]:
    """Return the ids of the selected dead letters by queue."""
    found: dict[str, list[str]] = {}
    for text in view.form.get("letter", []):
        name, _, item_id = text.partition("/")
        found.setdefault(read_segment(name), []).append(read_segment(item_id))
    return found


async def _act(action: str, queue: AsyncWorkQueue, ids: Sequence[str]) -> int:
    letters = queue.dead_letters
    return sum(await (letters.requeue(*ids) if action == "requeue" else letters.drop(*ids)))


async def _act_on_selected(view: View, action: str) -> int:
    done = 0
    for name, ids in _selected(view).items():
        done += await _act(action, view.queue(name), ids)
        await view.sampler.sample(name)
    return done


async def _ask_drop(view: View) -> Question:
    count = sum(map(len, _selected(view).values()))
    return Question(
        text=f"Remove {count:,} selected dead letters, with their data?", button=f"Drop {count:,}"
    )


async def _ask_all(view: View, action: str) -> Question:
    chosen = _Chosen.of({name: view.field(name) for name in _NAMES})
    if chosen.queue:
        await view.sampler.sample(chosen.queue)
    counts = await _counts(view, chosen)
    total = sum(counts.values())
    view.form |= {"until": [str(_sampled_ms(view, chosen))], "total": [str(total)]}
    verb = "Requeue" if action == "requeue" else "Drop"
    many, text = f"{total:,}", f"{verb} all {total:,} dead letters{chosen.text}?"
    if chosen.task or chosen.error:
        found, looked_at, _ = await _choose(await _lists(view, [*counts][:QUEUES], None), chosen)
        many = "all that match" if looked_at < total else f"{len(found):,}"
        text = f"{verb} all dead letters{chosen.text}? {len(found):,} of the newest {looked_at:,} match"
        text += f"; all {total:,} are looked at." if looked_at < total else "."
    data = (
        " Their data is removed, too." if action == "drop" else " Each is a new item at the end of its queue."
    )
    return Question(text=f"{text}{data} It is done in steps, the oldest first.", button=f"{verb} {many}")


def _sampled_ms(view: View, chosen: _Chosen) -> int:
    """Return when the queues were sampled last: what dies later is not meant, nor what dies again."""
    seen = view.sampler.histories
    samples = [seen[chosen.queue]] if chosen.queue in seen else seen.values()
    return max((round(one.stats.at * 1000) for one in samples if one.stats), default=0)


async def _act_on_all(view: View, action: str) -> int | Unfinished:
    """Look at the next dead letters, the oldest first, and act on those that match."""
    chosen = _Chosen.of({name: view.field(name) for name in _NAMES})
    await _counts(view, chosen)
    until = _number(view.field("until") or str(_sampled_ms(view, chosen)))
    done, looked_at, total = (_number(view.field(name, "0")) for name in ("done", "looked_at", "total"))
    at, after = read_segment(view.field("at")), Place.read(view.field("after", "0."))
    left, visited = STEP, 0
    names = [chosen.queue] if chosen.queue else view.board.queues.by_name()
    shards = sorted((shard.name, shard) for one in names for shard in view.queue(one).shards)
    last = {shard.whole.name: name for name, shard in shards}
    for name, queue in shards:
        whole = queue.whole.name
        if name < at or whole in view.problems:
            continue
        if whole not in view.sampler.histories:  # one of many, which had no turn yet
            await view.sampler.sample(whole)
        # Those that cannot be read do not keep it from the others.
        seen = view.sampler.histories.get(whole)
        if seen is None or seen.problem or name in seen.away:
            continue
        after = after if name == at else Place(0, b"")
        while left > 0 and visited < STEP_QUEUES:
            page = await _oldest(queue, after, until)
            if not page:
                break
            ids = [one.id for one in await chosen.filter.choose(queue, page)]
            done += await _act(action, queue, ids) if ids else 0
            after, left, looked_at = Place.of(page[-1]), left - len(page), looked_at + len(page)
        else:
            total = max(total, looked_at)
            numbers = {"until": until, "done": done, "looked_at": looked_at, "total": total}
            fields = {one: view.field(one) for one in _NAMES} | {one: str(n) for one, n in numbers.items()}
            fields |= {"at": segment(name), "after": str(after)}
            return Unfinished(done=done, looked_at=looked_at, total=total, fields=fields)
        visited += 1
        if name == last[whole]:
            await view.sampler.sample(whole)
    return done


async def _oldest(queue: AsyncWorkQueue, after: Place, until: int) -> list[DeadLetter]:
    """Return the next dead letters that are newer than a place, the oldest first."""
    while True:
        newer = await _rank(queue, lambda place: place > after)
        start = max(0, newer - AT_ONCE)
        # Those that die between the two calls shift the list: what follows must be there, or the end.
        count = newer - start + AT_ONCE
        page = await _listed(queue, start, count)
        if len(page) < count or Place.of(page[-1]) <= after:
            break
    following = [one for one in reversed(page) if after < Place.of(one)]
    return [one for one in following if Place.of(one).died_ms <= until][:AT_ONCE]


#: What of the query says which dead letters are meant.
_NAMES = ("queue", "task", "error")


def _actions(name: str) -> tuple[Action, Action]:
    """Return the actions on a selection, and on all that match."""
    path, done = f"{PAGE.path}/{name}", DONE[name]
    selected = Action(
        name=name,
        path=path,
        call=lambda view: _act_on_selected(view, name),
        done=done,
        ask=_ask_drop if name == "drop" else None,
        named=(*_NAMES, "letter"),
        kept=_NAMES,
    )
    every = Action(
        name=name,
        path=f"{path}-all",
        call=lambda view: _act_on_all(view, name),
        done=done,
        ask=lambda view: _ask_all(view, name),
        named=_NAMES,
        kept=_NAMES,
    )
    return selected, every


PAGE = Page(path="/dead", template="dead.html", read=read, menu="Dead letters")
ACTIONS = (*_actions("requeue"), *_actions("drop"))
