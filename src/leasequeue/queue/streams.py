"""Streams of items: what their runs emit, in chunks that are read while they run and for a time after it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leasequeue.durations import Duration, check_int, to_ms
from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T_co = TypeVar("T_co", covariant=True)

#: The longest chunk, in bytes.
MAX_CHUNK_BYTES = 65_536
#: How many bytes a stream may have, and how long it is kept after its item has ended (s), unless the caller
#: says something else.
MAX_STREAM_BYTES, KEEP_STREAM_SECONDS = 1 << 20, 600
#: The maximum of the former: 1,000 jobs with that much fill the memory of a large server.
MOST_STREAM_BYTES = 64 << 20
#: The answer of `emit_chunks` to a chunk that does not fit.
NO_ROOM = -2
#: The cursor before the first chunk.
BEGIN = b"0-0"
_CURSOR = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(Generic[T_co]):
    """A chunk of a stream: what one call of `emit` has added.

    Attributes:
        value: What was emitted; of `queue.results.stream`, its bytes.
        attempt: The attempt of the run that has emitted it.
        token: The fencing token of that run. Each run has another one, also if it is no new attempt.
        restarted: Whether it is the first chunk of another run than the chunk before: the work has begun
            anew, because a run has failed, was interrupted or has lost its lease.
        cursor: What to continue with as `after`.
    """

    value: T_co
    attempt: int
    token: int
    restarted: bool
    cursor: str


def check_cursor(after: str | None) -> bytes:
    """Check a cursor and return it as it is sent; None: the begin of the stream."""
    if after is None:
        return BEGIN
    if not isinstance(after, str) or not _CURSOR.fullmatch(after):
        raise InvalidArgument("after", after, "the cursor of a chunk, or None to begin with the first")
    return after.encode()


def check_stream(keep: Duration, max_bytes: int, *, names: tuple[str, str]) -> tuple[int, int]:
    """Check how long a stream is kept and how large it may be; return the time in ms, and the bytes."""
    keep_ms = to_ms(names[0], keep)
    return keep_ms, check_int(names[1], max_bytes, minimum=1000, maximum=MOST_STREAM_BYTES)


def chunk_row(chunk: bytes, keep: Duration, max_bytes: int) -> tuple[bytes, ...]:
    """Return what follows the id and the token in a row of `emit_chunks`."""
    if not isinstance(chunk, bytes) or len(chunk) > MAX_CHUNK_BYTES:
        raise InvalidArgument("chunk", chunk, f"at most {MAX_CHUNK_BYTES:,} bytes")
    keep_ms, most = check_stream(keep, max_bytes, names=("keep", "max_bytes"))
    return (b"emitted", b"%d" % keep_ms, b"%d" % most, chunk)


def chunks_in(page: Sequence[Any], after: bytes) -> Iterator[Chunk[bytes]]:
    """Read chunks from a reply of `read_chunks`, which begins after a cursor."""
    before = b"" if after == BEGIN else after.partition(b"-")[0]
    for at in range(0, len(page), 4):
        cursor, token, attempt, value = page[at : at + 4]
        run = cursor.partition(b"-")[0]
        yield Chunk(
            value=value,
            attempt=int(attempt) if attempt.isdigit() else 0,
            token=int(token) if token.isdigit() else 0,
            restarted=before not in {b"", run},
            cursor=cursor.decode(),
        )
        before = run
