"""Command names are read from a stream of requests, in chunks of any size."""

from __future__ import annotations

import random

import hiredis
import pytest

from leasequeue.testing.resp import CommandReader


def packed(*words: bytes) -> bytes:
    """Return a command as a client sends it."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stubs allow one word only
    return command


COMMANDS: list[tuple[bytes, ...]] = [
    (b"ping",),
    (b"SET", b"key", b"*3\r\n$3\r\nDEL\r\n$1\r\nx\r\n$1\r\ny\r\n"),
    (b"set", b"", b""),
    (b"EVALSHA", b"f" * 40, b"2", b"q:queue", b"q:processing", *(b"%d" % number for number in range(300))),
    (b"SET", b"large", bytes(range(256)) * 400),
    (b"BLMOVE", b"a", b"b", b"RIGHT", b"LEFT", b"5"),
]
STREAM = b"".join(packed(*command) for command in COMMANDS)
NAMES = [command[0].upper() for command in COMMANDS]


def test_a_stream_in_one_chunk() -> None:
    assert CommandReader().feed(STREAM) == NAMES


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_in_chunks_of_any_size(seed: int) -> None:
    rng = random.Random(seed)
    max_size = rng.choice([3, 100, 70_000])
    reader, names, at = CommandReader(), [], 0
    while at < len(STREAM):
        size = rng.randint(1, max_size)
        names += reader.feed(STREAM[at : at + size])
        at += size
    assert names == NAMES


def test_a_name_is_returned_when_it_is_complete() -> None:
    reader = CommandReader()
    results = [reader.feed(bytes([byte])) for byte in packed(b"get", b"key")]
    assert [names for names in results if names] == [[b"GET"]]


def test_other_bytes_are_ignored_and_not_kept() -> None:
    reader = CommandReader()
    assert reader.feed(b"PING\r\nINFO all\r\n") == []
    assert reader.feed(packed(b"PING")) == [b"PING"]
    for _ in range(100):
        reader.feed(b"x" * 1000)
    assert len(reader._rest) < 2000
