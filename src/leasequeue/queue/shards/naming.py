"""The names of the shards of a queue, and which of them an item belongs to."""

from __future__ import annotations

import binascii
import itertools
from functools import cache

from leasequeue.errors import InvalidArgument
from leasequeue.keys import check_prefix

#: How many slots a cluster has.
_SLOTS = 16_384


@cache
def shard_names(name: str, count: int) -> tuple[str, ...]:
    """Return the names of the queues over which the items of a queue are spread.

    They lie evenly over the slots of a cluster: each has a slot in another one of `count` equal ranges. The
    first is `{<name>}`, so that what concerns all of them is found by the name alone.
    """
    if "{" in name or "}" in name:
        raise InvalidArgument("name", name, "a name without braces, as each shard has a separate hash tag")
    first = check_prefix(f"{{{name}}}")
    begin = _range_of(first, count)
    return (first, *(_named(name, place, (begin + place) % count, count) for place in range(1, count)))


def _named(name: str, place: int, wanted: int, count: int) -> str:
    for tried in itertools.count():
        candidate = f"{{{name}/{place}.{tried}}}"
        if _range_of(candidate, count) == wanted:
            return check_prefix(candidate)
    raise AssertionError


def _range_of(name: str, count: int) -> int:
    """Return in which of `count` ranges of slots a name is that is a hash tag as a whole."""
    return binascii.crc_hqx(name[1:-1].encode(), 0) % _SLOTS * count // _SLOTS


def place_of(value: bytes, count: int) -> int:
    """Return the shard of an id, or of a group: the CRC-16 by which a cluster finds slots, modulo `count`."""
    return binascii.crc_hqx(value, 0) % count
