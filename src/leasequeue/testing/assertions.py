"""Assertions about the contents of a queue. A failure lists what the queue contains."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING, Any

from leasequeue.errors import InvalidArgument
from leasequeue.states import ITEM_STATES, State
from leasequeue.testing.contents import QueueContents, describe_dead_letter, describe_item, shorten, tries

if TYPE_CHECKING:
    from leasequeue.queue.dead_letters import DeadLetter
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.views import ItemView

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
            words += f" with the data {shorten(self.data)}"
        if self.state is not None:
            words += f" that is {self.state}"
        object.__setattr__(self, "words", words)

    def matches(self, item: ItemView | DeadLetter) -> bool:
        """Return whether an item matches the id and the data."""
        return (self.item_id is None or item.id == self.item_id) and (
            self.data is ANY or _same(self.data, item.data)
        )

    def unfinished(self, contents: QueueContents) -> list[ItemView]:
        """Return the unfinished items that match."""
        views = (view for view in contents.items if self.state is None or view.state == self.state)
        return [view for view in views if self.matches(view)]

    def dead(self, contents: QueueContents) -> list[DeadLetter]:
        """Return the dead letters that match."""
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
        description = describe_item(found[0], contents.now)
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
        f"\n{view.id!r} is {view.state}, not dead: {tries(view.attempt)}"
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
        description = describe_item(found[0], contents.now)
        raise AssertionError(f"{expected.words} is not completed but {found[0].state}: {description}")
    if letters := expected.dead(contents):
        raise AssertionError(f"{expected.words} is a dead letter: {describe_dead_letter(letters[0])}")
    if result is ANY:
        return
    stored = await queue.results.get(item_id)
    if stored is None:
        raise AssertionError(f"{expected.words} has no result, expected {shorten(result)}")
    if not _same(result, stored):
        raise AssertionError(f"{expected.words} has the result {shorten(stored)}, expected {shorten(result)}")


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
            lines.append(f"{view.id!r} has other data: {shorten(view.data)}")
        if expected.state not in (None, view.state):
            lines.append(f"{view.id!r} is {view.state}")
    lines += [
        f"{letter.id!r} is a dead letter: {describe_dead_letter(letter)}"
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
