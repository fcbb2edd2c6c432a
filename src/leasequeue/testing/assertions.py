"""Assertions about the contents of a queue. A failure lists what the queue contains."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING, Any

from leasequeue.errors import InvalidArgument, summary_of
from leasequeue.queue.queue import engines_of
from leasequeue.states import ITEM_STATES, STATES, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.dead_letters import DeadLetter
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.views import Counts, ItemView

#: Items read per call, and items shown of each state.
PAGE = 1000
SHOWN = 10
#: The maximum number of characters shown of data or an error.
MAX_SHOWN = 120


@dataclass(frozen=True)
class QueueContents:
    """The contents of a queue at the time they were read.

    Attributes:
        items: The unfinished items: waiting, then leased, then scheduled.
        dead_letters: The dead letters, the newest first.
    """

    name: str
    now: float
    counts: Counts
    items: Sequence[ItemView]
    dead_letters: Sequence[DeadLetter]

    @classmethod
    async def of(cls, queue: AsyncWorkQueue) -> QueueContents:
        """Read all items and dead letters of a queue, with their data."""
        items: list[ItemView] = []
        for state in ITEM_STATES:
            start = 0
            while page := await queue.inspect(state, start=start, count=PAGE, data=True):
                items += page
                start += len(page)
        letters: list[DeadLetter] = []
        while page_of_dead := await queue.dead_letters.list(start=len(letters), count=PAGE, data=True):
            letters += page_of_dead
        clock = engines_of(queue).clock or time.time
        return cls(queue.name, clock(), await queue.counts(), tuple(items), tuple(letters))

    def report(self) -> str:
        """Return a description of the contents, of some lines."""
        counts = [(state, count) for state, count in zip(STATES, self.counts, strict=True) if count]
        if not counts:
            return f"queue {self.name!r}, which is empty"
        lines = [
            f"queue {self.name!r}, which holds {', '.join(f'{count} {state}' for state, count in counts)}:"
        ]
        for state, count in counts:
            rows = self._rows(state)
            lines += [f"  {state:9}  {row}" for row in rows[:SHOWN]]
            if count > SHOWN:
                lines.append(f"  {state:9}  ... and {count - SHOWN} more")
        return "\n".join(lines)

    def _rows(self, state: str) -> list[str]:
        if state == "dead":
            return [f"{letter.id!r}  {_describe_dead_letter(letter)}" for letter in self.dead_letters[:SHOWN]]
        views = [view for view in self.items if view.state == state]
        return [f"{view.id!r}  {_describe_item(view, self.now)}" for view in views[:SHOWN]]


def _describe_item(view: ItemView, now: float) -> str:
    """Describe an unfinished item: its data, its attempts, and when it is due."""
    words = [_shorten(view.data)]
    if view.due is not None:
        left = view.due - now
        what = "the lease expires" if view.state == "leased" else "due"
        words.append(f"{what} in {left:.1f} s" if left >= 0 else f"{what} since {-left:.1f} s")
    if view.state == "leased":
        words.append(f"attempt {view.attempt}")
    elif view.attempt:
        words.append(_tries(view.attempt))
    return ", ".join(words)


def _describe_dead_letter(letter: DeadLetter) -> str:
    """Describe a dead letter: its data, its attempts, and one line of its error."""
    error = _shorten(summary_of(letter.error), quoted=False)
    return f"{_shorten(letter.data)}, {_tries(letter.attempt)}, {error}"


def _shorten(value: Any, *, quoted: bool = True) -> str:
    text = repr(value) if quoted else str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def _tries(attempt: int) -> str:
    if not attempt:
        return "not tried"
    return "tried once" if attempt == 1 else f"tried {attempt} times"


#: Matches any value. None cannot be used for this, as it is a JSON value.
ANY: Any = type("Any", (), {"__repr__": lambda _: "ANY"})()


@dataclass(frozen=True)
class _Expected:
    """The items that an assertion is about."""

    item_id: str | None
    data: Any
    state: State | None = None
    error: str | None = None
    words: str = field(init=False)

    def __post_init__(self) -> None:
        if self.item_id is not None and not isinstance(self.item_id, str):
            raise InvalidArgument("item_id", self.item_id, "a str, or None for any item")
        if self.state is not None and self.state not in ITEM_STATES:
            raise InvalidArgument("state", self.state, ", ".join(ITEM_STATES))
        if self.error is not None and not isinstance(self.error, str):
            raise InvalidArgument("error", self.error, "a part of the error's text, or None for any error")
        words = "item" if self.item_id is None else f"item {self.item_id!r}"
        if self.data is not ANY:
            words += f" with the data {_shorten(self.data)}"
        if self.state is not None:
            words += f" that is {self.state}"
        object.__setattr__(self, "words", words)

    def matches(self, item: ItemView | DeadLetter) -> bool:
        return (self.item_id is None or item.id == self.item_id) and (
            self.data is ANY or _same(self.data, item.data)
        )

    def unfinished(self, contents: QueueContents) -> list[ItemView]:
        views = (view for view in contents.items if self.state is None or view.state == self.state)
        return [view for view in views if self.matches(view)]

    def dead(self, contents: QueueContents) -> list[DeadLetter]:
        letters = (one for one in contents.dead_letters if self.error is None or self.error in one.error)
        return [letter for letter in letters if self.matches(letter)]


async def assert_added(
    queue: AsyncWorkQueue, item_id: str | None = None, *, data: Any = ANY, state: State | None = None
) -> ItemView:
    """Assert that an unfinished item is in the queue: waiting, leased or scheduled.

        await assert_added(queue, "mail-1")
        await assert_added(queue, data={"to": "ada@example.org"})

    Args:
        queue: The queue.
        item_id: The item's id; None matches any.
        data: The item's data: bytes are compared with the data, a `str` with the data or its JSON value,
            any other value with the JSON value.
        state: The item's state: `"waiting"`, `"leased"` or `"scheduled"`; None matches any.

    Returns:
        The item; the first, if several match.

    Raises:
        AssertionError: If no item matches; the message lists the contents of the queue.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    expected = _Expected(item_id, data, state)
    contents = await QueueContents.of(queue)
    if found := expected.unfinished(contents):
        return found[0]
    raise AssertionError(f"no {expected.words} in {contents.report()}{_near(expected, contents)}")


async def assert_not_added(
    queue: AsyncWorkQueue, item_id: str | None = None, *, data: Any = ANY, state: State | None = None
) -> None:
    """Assert that no matching unfinished item is in the queue. Dead letters are ignored.

    Args:
        queue: The queue.
        item_id: As for `assert_added`.
        data: As for `assert_added`.
        state: As for `assert_added`.

    Raises:
        AssertionError: If an item matches; the message lists the contents of the queue.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    expected = _Expected(item_id, data, state)
    contents = await QueueContents.of(queue)
    if found := expected.unfinished(contents):
        description = _describe_item(found[0], contents.now)
        raise AssertionError(f"unexpected {expected.words}: {description}, in {contents.report()}")


async def assert_dead(
    queue: AsyncWorkQueue, item_id: str | None = None, *, data: Any = ANY, error: str | None = None
) -> DeadLetter:
    """Assert that a matching dead letter is in the queue.

        await assert_dead(queue, "mail-1", error="no such address")

    Args:
        queue: The queue.
        item_id: The item's id; None matches any.
        data: As for `assert_added`.
        error: A part of its error: of the reason, or of the traceback.

    Returns:
        The dead letter; the newest, if several match.

    Raises:
        AssertionError: If no dead letter matches; the message lists the contents of the queue, and the actual
            error if only that differs.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    expected = _Expected(item_id, data, error=error)
    contents = await QueueContents.of(queue)
    if found := expected.dead(contents):
        return found[0]
    others = _Expected(item_id, data).dead(contents)
    if others and error is not None:
        raise AssertionError(
            f"dead letter {others[0].id!r} has no {error!r} in its error, which is:\n"
            f"{indent(others[0].error.rstrip(), '    ')}\nin {contents.report()}"
        )
    alive = "".join(
        f"\n{view.id!r} is {view.state}, not dead: {_tries(view.attempt)}"
        for view in expected.unfinished(contents)[:3]
    )
    raise AssertionError(f"no dead letter for {expected.words} in {contents.report()}{alive}")


async def assert_completed(queue: AsyncWorkQueue, item_id: str, *, result: Any = ANY) -> None:
    """Assert that an item is neither unfinished nor a dead letter.

    A queue keeps nothing of a completed item but its result. So without `result`, an item that was never
    added passes as well.

    Args:
        queue: The queue.
        item_id: The item's id.
        result: The item's result, compared like the data in `assert_added`.

    Raises:
        AssertionError: If the item is in the queue, or its result differs.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    expected = _Expected(item_id, ANY)
    contents = await QueueContents.of(queue)
    if found := expected.unfinished(contents):
        description = _describe_item(found[0], contents.now)
        raise AssertionError(f"{expected.words} is not completed but {found[0].state}: {description}")
    if letters := expected.dead(contents):
        raise AssertionError(f"{expected.words} is a dead letter: {_describe_dead_letter(letters[0])}")
    if result is ANY:
        return
    stored = await queue.results.get(item_id)
    if stored is None:
        raise AssertionError(f"{expected.words} has no result, expected {_shorten(result)}")
    if not _same(result, stored):
        raise AssertionError(
            f"{expected.words} has the result {_shorten(stored)}, expected {_shorten(result)}"
        )


async def assert_empty(queue: AsyncWorkQueue, *, dead_letters: bool = False) -> None:
    """Assert that the queue has no unfinished items and no dead letters.

    Args:
        queue: The queue.
        dead_letters: Whether to allow dead letters.

    Raises:
        AssertionError: If the queue is not empty; the message lists its contents.
        QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    contents = await QueueContents.of(queue)
    counts = contents.counts
    if counts.total or (counts.dead and not dead_letters):
        raise AssertionError(f"not empty: {contents.report()}")


def _near(expected: _Expected, contents: QueueContents) -> str:
    """Describe items that match only in part."""
    lines = []
    for view in _Expected(expected.item_id, ANY).unfinished(contents) if expected.item_id else ():
        if expected.data is not ANY and not _same(expected.data, view.data):
            lines.append(f"{view.id!r} has other data: {_shorten(view.data)}")
        if expected.state not in (None, view.state):
            lines.append(f"{view.id!r} is {view.state}")
    lines += [
        f"{letter.id!r} is a dead letter: {_describe_dead_letter(letter)}"
        for letter in expected.dead(contents)[:3]
        if expected.item_id or expected.data is not ANY
    ]
    return "".join(f"\n{line}" for line in lines)


def _same(expected: Any, data: bytes | None) -> bool:
    if data is None:
        return False
    if isinstance(expected, (bytes, bytearray, memoryview)):
        return bytes(expected) == data
    if isinstance(expected, str) and expected.encode() == data:
        return True
    try:
        return bool(json.loads(data) == expected)
    except ValueError:
        return False
