"""Assertions about what is in a queue, which say what is there instead."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasehold.errors import InvalidArgument
from leasehold.queue.views import STATES, ItemView, State
from leasehold.testing.contents import QueueContents, describe_item, describe_letter, shorten, tries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.queue.dead_letters import DeadLetter
    from leasehold.queue.queue import AsyncWorkQueue

#: Stands for "not asked for", as None is a value that JSON knows.
ANY: Any = type("Any", (), {"__repr__": lambda _: "ANY"})()


@dataclass(frozen=True)
class _Wanted:
    """Which items are meant."""

    item_id: str | None
    data: Any
    state: State | None = None
    error: str | None = None
    words: str = field(init=False)

    def __post_init__(self) -> None:
        if self.item_id is not None and not isinstance(self.item_id, str):
            raise InvalidArgument("item_id", self.item_id, "a text, or None for any")
        if self.state is not None and self.state not in STATES:
            raise InvalidArgument("state", self.state, ", ".join(STATES))
        if self.error is not None and not isinstance(self.error, str):
            raise InvalidArgument("error", self.error, "a part of the error's text, or None for any")
        words = "item" if self.item_id is None else f"item {self.item_id!r}"
        if self.data is not ANY:
            words += f" with the data {shorten(self.data)}"
        if self.state is not None:
            words += f" that is {self.state}"
        object.__setattr__(self, "words", words)

    def fits(self, one: ItemView | DeadLetter) -> bool:
        """Whether an item is one of those that are meant, its state and error not looked at."""
        return (self.item_id is None or one.id == self.item_id) and (
            self.data is ANY or _same(self.data, one.data)
        )

    def live(self, contents: QueueContents) -> list[ItemView]:
        """Those of them that are unfinished."""
        views = (view for view in contents.items if self.state is None or view.state == self.state)
        return [view for view in views if self.fits(view)]

    def dead(self, contents: QueueContents) -> list[DeadLetter]:
        """Those of them that are dead letters."""
        letters = (one for one in contents.dead_letters if self.error is None or self.error in one.error)
        return [letter for letter in letters if self.fits(letter)]


async def assert_added(
    queue: AsyncWorkQueue, item_id: str | None = None, *, data: Any = ANY, state: State | None = None
) -> ItemView:
    """Assert that an unfinished item is in the queue: waiting, leased or scheduled.

        await assert_added(queue, "mail-1")
        await assert_added(queue, data={"to": "ada@example.org"})

    Args:
        queue: Where to look.
        item_id: The item's id; None is any.
        data: Its data: bytes as they are, a text as it is or as JSON, anything else as JSON.
        state: The state that it is in: `"waiting"`, `"leased"` or `"scheduled"`; None is any.

    Returns:
        The item, the first of several.

    Raises:
        AssertionError: If there is none; the message lists what there is.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    wanted = _Wanted(item_id, data, state)
    contents = await QueueContents.of(queue)
    if found := wanted.live(contents):
        return found[0]
    raise AssertionError(f"no {wanted.words} in {contents.report()}{_near(wanted, contents)}")


async def assert_not_added(
    queue: AsyncWorkQueue, item_id: str | None = None, *, data: Any = ANY, state: State | None = None
) -> None:
    """Assert that no such unfinished item is in the queue. Dead letters are not looked at.

    Args:
        queue: Where to look.
        item_id: As for `assert_added`; None is any.
        data: As for `assert_added`.
        state: As for `assert_added`.

    Raises:
        AssertionError: If there is one; the message lists what there is.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    wanted = _Wanted(item_id, data, state)
    contents = await QueueContents.of(queue)
    if found := wanted.live(contents):
        there = describe_item(found[0], contents.now)
        raise AssertionError(f"there is an {wanted.words}: {there}, in {contents.report()}")


async def assert_dead(
    queue: AsyncWorkQueue, item_id: str | None = None, *, data: Any = ANY, error: str | None = None
) -> DeadLetter:
    """Assert that an item is among the dead letters.

        await assert_dead(queue, "mail-1", error="no such address")

    Args:
        queue: Where to look.
        item_id: The item's id; None is any.
        data: As for `assert_added`.
        error: A part of its error: of the reason, or of the traceback.

    Returns:
        The dead letter, the newest of several.

    Raises:
        AssertionError: If there is none; the message lists what there is, and the error it has instead.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    wanted = _Wanted(item_id, data, error=error)
    contents = await QueueContents.of(queue)
    if found := wanted.dead(contents):
        return found[0]
    others = _Wanted(item_id, data).dead(contents)
    if others and error is not None:
        raise AssertionError(
            f"dead letter {others[0].id!r} has no {error!r} in its error, which is:\n"
            f"{_indented(others[0].error)}\nin {contents.report()}"
        )
    alive = "".join(
        f"\n{view.id!r} is {view.state}, not dead: {tries(view.attempt)}"
        for view in wanted.live(contents)[:3]
    )
    raise AssertionError(f"no dead letter for {wanted.words} in {contents.report()}{alive}")


async def assert_completed(queue: AsyncWorkQueue, item_id: str, *, result: Any = ANY) -> None:
    """Assert that an item is finished: it is neither in the queue nor among the dead letters.

    A queue keeps nothing of what is finished, unless a result was asked for. So without `result` an item that
    was never added passes, too.

    Args:
        queue: Where to look.
        item_id: The item's id.
        result: What it has left, compared as data are in `assert_added`.

    Raises:
        AssertionError: If it is still there, or has left something else.
        InvalidArgument, QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    wanted = _Wanted(item_id, ANY)
    contents = await QueueContents.of(queue)
    if found := wanted.live(contents):
        there = describe_item(found[0], contents.now)
        raise AssertionError(f"{wanted.words} is not completed but {found[0].state}: {there}")
    if letters := wanted.dead(contents):
        raise AssertionError(f"{wanted.words} is a dead letter: {describe_letter(letters[0])}")
    if result is ANY:
        return
    left = await queue.results.get(item_id)
    if left is None:
        raise AssertionError(f"{wanted.words} has left no result, not {shorten(result)}")
    if not _same(result, left):
        raise AssertionError(f"{wanted.words} has left {shorten(left)}, not {shorten(result)}")


async def assert_empty(queue: AsyncWorkQueue, *, dead_letters: bool = False) -> None:
    """Assert that everything is done: nothing waits, is leased or scheduled, and nothing was given up.

    Args:
        queue: Where to look.
        dead_letters: Whether there may be dead letters.

    Raises:
        AssertionError: If there is something; the message lists it.
        QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
    """
    __tracebackhide__ = True
    contents = await QueueContents.of(queue)
    counts = contents.counts
    if counts.total or (counts.dead and not dead_letters):
        raise AssertionError(f"not empty: {contents.report()}")


def _near(wanted: _Wanted, contents: QueueContents) -> str:
    """What became of the item that was looked for, if it is there in another way."""
    lines = []
    for view in _Wanted(wanted.item_id, ANY).live(contents) if wanted.item_id else ():
        if wanted.data is not ANY and not _same(wanted.data, view.data):
            lines.append(f"{view.id!r} has other data: {shorten(view.data)}")
        if wanted.state not in (None, view.state):
            lines.append(f"{view.id!r} is {view.state}")
    lines += [
        f"{letter.id!r} is a dead letter: {describe_letter(letter)}"
        for letter in _some(wanted.dead(contents))
        if wanted.item_id or wanted.data is not ANY
    ]
    return "".join(f"\n{line}" for line in lines)


def _some(letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    return list(letters)[:3]


def _same(wanted: Any, there: bytes | None) -> bool:
    if there is None:
        return False
    if isinstance(wanted, (bytes, bytearray, memoryview)):
        return bytes(wanted) == there
    if isinstance(wanted, str) and wanted.encode() == there:
        return True
    try:
        return bool(json.loads(there) == wanted)
    except ValueError:
        return False


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
