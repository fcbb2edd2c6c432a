"""The names of the shards of a queue, and which of them an item belongs to."""

from __future__ import annotations

import binascii
import itertools
from functools import cache

from leasequeue.errors import InvalidArgument
from leasequeue.keys import check_prefix

#: How many slots a cluster has, and how far from its place a shard may be.
_SLOTS, _NEAR = 16_384, 32


@cache
def shard_names(name: str, count: int) -> tuple[str, ...]:
    """Return the names of the queues over which the items of a queue are spread.

    They lie evenly over the slots of a cluster, one after `16,384 / count` slots, so that equal masters have
    as many of them, or one more. The first is `{<name>}`, so that what concerns all of them is found by the
    name alone.
    """
    if "{" in name or "}" in name:
        raise InvalidArgument("name", name, "a name without braces, as each shard has a separate hash tag")
    first = check_prefix(f"{{{name}}}")
    begin = _slot_of(first)
    others = (_named(name, place, begin + place * _SLOTS // count) for place in range(1, count))
    return (first, *others)


def _named(name: str, place: int, wanted: int) -> str:
    for tried in itertools.count():
        candidate = f"{{{name}/{place}.{tried}}}"
        if (_slot_of(candidate) - wanted + _NEAR) % _SLOTS <= 2 * _NEAR:
            return check_prefix(candidate)
    raise AssertionError


def _slot_of(name: str) -> int:
    """Return the slot of a name that is a hash tag as a whole."""
    return binascii.crc_hqx(name[1:-1].encode(), 0) % _SLOTS


def place_of(value: bytes, count: int) -> int:
    """Return the shard of an id, or of a group: the CRC-16 by which a cluster finds slots, modulo `count`."""
    return binascii.crc_hqx(value, 0) % count
