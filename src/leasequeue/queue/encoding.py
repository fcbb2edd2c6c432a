"""Encodes items, leases and outcomes as rows of bytes, checks them, and divides them into trips."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

from leasequeue.durations import Duration, check_bool, check_int, moment_ms, to_ms
from leasequeue.errors import InvalidArgument, NotReplicated
from leasequeue.errors.describing import traceback_of
from leasequeue.item import ID_ALLOWED, MAX_DATA_BYTES, MAX_ID_BYTES, Item
from leasequeue.wire.link import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence
    from datetime import datetime

#: The maximum number of rows and bytes that go to the server in one trip. No trip takes it more than 5 ms.
TRIP_ROWS = 250
TRIP_BYTES = 1 << 20
#: The same of rows that take the server longer: of dead letters, and of items that become delayed.
SLOW_ROWS = 100
#: The answer to a row whose data key is no string.
WRONG_TYPE = -3
#: The maximum number of bytes of data in one reply.
MAX_REPLY_BYTES = 8 << 20
#: The size of a row without its data, and the least size of a slow one: a trip holds SLOW_ROWS of them.
ROW_BYTES = 128
_SLOW_ROW_BYTES = LARGE_BYTES // SLOW_ROWS
#: The longest error that is kept; a longer one loses its middle.
MAX_ERROR_BYTES = 16 << 10
#: How much of the end of an error an event contains, and the item while it waits for its retry.
EVENT_ERROR_BYTES = 1000


#: What the id of an item that exists may be, for error messages.
_KNOWN_ID_ALLOWED = "a string, as `inspect` returns it"

Rows: TypeAlias = "Sequence[Sequence[bytes]]"


class Pipeline(Protocol):
    """What `add_item_to_pipeline` needs of a pipeline of redis-py."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Put a command into the pipeline."""
        ...


#: Levels go from -9 to 9; items of a higher one are leased first.
MAX_LEVEL = 9
#: The most tags of an item.
MAX_TAGS = 20
#: The longest name of a group, and the longest tag, in bytes of UTF-8.
MAX_GROUP_BYTES = 256
#: The largest weight of an item, and the longest key that ends with its start, in bytes of UTF-8.
MAX_WEIGHT = 1_000_000
MAX_KEY_BYTES = 512
GROUP_ALLOWED = f"a string of 1 to {MAX_GROUP_BYTES} bytes in UTF-8, without NUL, other than '*'"
#: The largest batch of items that gather.
MAX_GATHERED = 250
#: How an item is added: with a check of its id, without one, or replacing an item that waits.
CHECKED, UNIQUE, REPLACING = b"0", b"1", b"2"


class UniqueOptions(TypedDict, total=False):
    """What an item carries beyond its data: see `AsyncWorkQueue.add_item`."""

    priority: int
    group: str | None
    tags: Sequence[str]
    weight: int
    expires_in: Duration | None


class AddOptions(UniqueOptions, total=False):
    """The options of an item, and how its id is checked: see `AsyncWorkQueue.add_item`."""

    dedupe_for: Duration | None
    unique_until_start: str | None
    replace: bool


def check_group(group: object) -> str:
    """Check the name of a group and return it."""
    if not isinstance(group, str) or group in ("", "*") or "\0" in group:
        raise InvalidArgument("group", group, GROUP_ALLOWED)
    try:
        size = len(group.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument("group", group, GROUP_ALLOWED) from error
    if size > MAX_GROUP_BYTES:
        raise InvalidArgument("group", group, GROUP_ALLOWED)
    return group


def check_tags(tags: object) -> list[str]:
    """Check the tags of an item and return them, each once."""
    if not isinstance(tags, list | tuple | set | frozenset) or len(tags) > MAX_TAGS:
        raise InvalidArgument("tags", tags, f"a list of at most {MAX_TAGS} tags")
    return sorted({check_tag(one) for one in tags})


def check_tag(tag: object) -> str:
    """Check a tag and return it."""
    try:
        size = len(tag.encode()) if isinstance(tag, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_GROUP_BYTES or "\0" in str(tag):
        raise InvalidArgument("tag", tag, f"a string of 1 to {MAX_GROUP_BYTES} bytes in UTF-8, without NUL")
    return str(tag)


def _check_key(key: object) -> str:
    try:
        size = len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_KEY_BYTES:
        allowed = f"a string of 1 to {MAX_KEY_BYTES} bytes in UTF-8"
        raise InvalidArgument("unique_until_start", key, allowed)
    return str(key)


def refuse_options(others: Iterable[str], taken: str, names: Iterable[str]) -> None:
    """Refuse options of unknown names: a method that takes keywords for another cannot leave it to Python."""
    for other in others:
        raise TypeError(f"unexpected keyword argument {other!r}: {taken} {', '.join(names)}")


def adding(
    *,
    priority: int = 0,
    group: str | None = None,
    tags: Sequence[str] = (),
    weight: int = 1,
    expires_in: Duration | None = None,
    dedupe_for: Duration | None = None,
    unique_until_start: str | None = None,
    replace: bool = False,
    **others: object,
) -> bytes:
    """Return the value of a row that says how an item is added, and its options."""
    refuse_options(others, "options are delay, at,", AddOptions.__annotations__)
    mode = REPLACING if check_bool("replace", replace) else CHECKED
    sent: dict[str, int | str | list[str]] = {}
    if check_int("priority", priority, minimum=-MAX_LEVEL, maximum=MAX_LEVEL):
        sent["level"] = priority
    if group is not None:
        sent["group"] = check_group(group)
    if tags:
        sent["tags"] = check_tags(tags)
    if check_int("weight", weight, minimum=1, maximum=MAX_WEIGHT) > 1:
        sent["weight"] = weight
    if expires_in is not None:
        sent["expires_in"] = to_ms("expires_in", expires_in)
    if dedupe_for is not None:
        sent["dedupe"] = to_ms("dedupe_for", dedupe_for)
    if unique_until_start is not None:
        key = _check_key(unique_until_start)
        sent["unstarted"] = key if group is None else f"{group}\0{key}"  # a shard has many groups
    return mode + b":" + json.dumps(sent, separators=(",", ":")).encode() if sent else mode


def adding_unique(
    *,
    priority: int = 0,
    group: str | None = None,
    tags: Sequence[str] = (),
    weight: int = 1,
    expires_in: Duration | None = None,
    **others: object,
) -> bytes:
    """Return what `adding` does, for an item whose id is not checked."""
    refuse_options(others, "without a check of the id, options are delay, at,", UniqueOptions.__annotations__)
    how = adding(priority=priority, group=group, tags=tags, weight=weight, expires_in=expires_in)
    return UNIQUE + how[1:]


def item_row(
    item: Item, delay: Duration, at: datetime | None = None, how: bytes = CHECKED
) -> tuple[bytes, ...]:
    """Return the row that adds an item.

    `how` is what `adding` returns.
    """
    if not isinstance(item, Item):
        raise InvalidArgument("item", item, "an Item")
    # It was checked when it was made, but its attributes may have been set since.
    try:
        item_id = encoded(item)
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidArgument("id", item.id, ID_ALLOWED) from error
    if not 0 < len(item_id) <= MAX_ID_BYTES:
        raise InvalidArgument("id", item.id, ID_ALLOWED)
    if not isinstance(item.data, bytes) or len(item.data) > MAX_DATA_BYTES:
        raise InvalidArgument("data", item.data, f"bytes, at most {MAX_DATA_BYTES} of them")
    wait = b"0" if type(delay) is int and delay == 0 else b"%d" % to_ms("delay", delay, zero=True)
    if at is not None:
        if wait != b"0":
            raise InvalidArgument("at", at, "a delay or a time, not both")
        wait = b"@%d" % moment_ms("at", at)
    return (item_id, item.data, wait, how)


def row_size(payload: int = 0, *, slow: bool = False) -> int:
    """Return the size that a row counts with among those of a trip.

    A trip holds SLOW_ROWS of the rows that are `slow`.
    """
    size = payload + ROW_BYTES
    return max(size, _SLOW_ROW_BYTES) if slow else size


def completion(*, fenced: bool, result: bytes | None, keep_result: Duration | None) -> bytes:
    """Return the value of a completion's row that follows the id and the token."""
    return completions([result], fenced=fenced, keep_result=keep_result)[0]


def completions(
    results: Sequence[bytes | None], *, fenced: bool, keep_result: Duration | None
) -> list[bytes]:
    """Return what `completion` returns for each of some results, and raise what it raises."""
    flag = b"1" if check_bool("fenced", fenced) else b"0"
    prefix = b""
    values: list[bytes] = []
    for result in results:
        if result is None:
            values.append(flag)
            continue
        if not isinstance(result, bytes) or len(result) > MAX_DATA_BYTES:
            raise InvalidArgument("result", result, f"bytes, at most {MAX_DATA_BYTES} of them, or None")
        keep_ms = 0 if keep_result is None else to_ms("keep_result", keep_result)
        prefix = prefix or b"%b:%d:" % (flag, keep_ms)
        values.append(prefix + result)
    return values


def failing(error: object, retry_in: Duration | None) -> tuple[bytes, bytes]:
    """Return the values of a failure's row that follow the id and the token.

    If the item is retried, the end of the error is kept until it is completed, and in its event.
    """
    text = error_text(error)
    if retry_in is None:
        return b"-1", text
    end = (
        text if len(text) <= EVENT_ERROR_BYTES else text[-EVENT_ERROR_BYTES:].decode(errors="ignore").encode()
    )
    return b"%d" % to_ms("retry_in", retry_in, zero=True), end


def error_text(error: object) -> bytes:
    """Return an error as it is kept: of an exception, the traceback. A long one loses its middle."""
    if isinstance(error, BaseException):
        error = traceback_of(error)
    if not isinstance(error, str):
        raise InvalidArgument("error", error, "a text or an exception")
    raw = error.encode(errors="backslashreplace")
    if len(raw) <= MAX_ERROR_BYTES:
        return raw
    half = MAX_ERROR_BYTES // 2 - 32
    # A character that is cut in two is dropped.
    head = raw[:half].decode(errors="ignore").encode()
    tail = raw[-half:].decode(errors="ignore").encode()
    return b"%b\n... %d bytes left out ...\n%b" % (head, len(raw) - len(head) - len(tail), tail)


def encoded(item: Item) -> bytes:
    """Return an item's id as bytes. Ids of foreign clients that are not UTF-8 keep their bytes."""
    return item.id.encode(errors="surrogateescape")


def encoded_id(item_id: str, *, argument: str = "item_id") -> bytes:
    """Return the id of an existing item as bytes. A client of another library may have added it with any."""
    if not isinstance(item_id, str):
        raise InvalidArgument(argument, item_id, _KNOWN_ID_ALLOWED)
    try:
        return item_id.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(argument, item_id, _KNOWN_ID_ALLOWED) from error


async def all_trips(
    calls: Sequence[Coroutine[Any, Any, list[Any]]], *, last_first: bool = False
) -> list[Any]:
    """Make all trips of one call, and join their answers.

    With `last_first`, send the last one first, because what returns to the front later precedes the rest. If
    one fails, raise its error after all have ended, with a note that says how many were applied.
    """
    if len(calls) == 1:
        return await calls[0]
    results = await asyncio.gather(*(calls[::-1] if last_first else calls), return_exceptions=True)
    results = results[::-1] if last_first else results
    answers = [one.answers if isinstance(one, NotReplicated) else one for one in results]
    failed = [one for one in answers if isinstance(one, BaseException)]
    if failed:
        applied = len(results) - len(failed)
        failed[0].add_note(f"{applied} of the {len(results)} trips of this call were applied; repeat it")
        raise failed[0]
    joined = [answer for its in answers if not isinstance(its, BaseException) for answer in its]
    for one in results:
        if isinstance(one, NotReplicated):
            one.answers = tuple(answer == 1 for answer in joined)
            raise one
    return joined


def trips(sizes: Sequence[int], *, maximum: int = TRIP_ROWS) -> Iterator[tuple[int, int]]:
    """Divide rows into trips, (start, stop), of at most `maximum` rows and, unless it is one row, 1 MiB.

    Of rows that have at least the size of a slow one, a trip holds fewer: see `row_size`.
    """
    start = weight = cost = 0
    for at, size in enumerate(sizes):
        its_cost = TRIP_ROWS if size >= _SLOW_ROW_BYTES else SLOW_ROWS
        if at > start and (cost + its_cost > maximum * SLOW_ROWS or weight + size > TRIP_BYTES):
            yield start, at
            start, weight, cost = at, 0, 0
        weight += size
        cost += its_cost
    if start < len(sizes):
        yield start, len(sizes)


def pages(start: int, count: int, maximum: int) -> Iterator[tuple[int, int]]:
    """Divide a slice of a list into pages, (start, count), of at most `maximum` entries.

    A negative start counts from the end of the list, where the pages end, too.
    """
    stop = min(start + count, 0) if start < 0 else start + count
    for at in range(start, stop, maximum):
        yield at, min(maximum, stop - at)
