"""The keys of a queue: the only place where a key's name is written in Python."""

from __future__ import annotations

import re

from leasehold.errors import InvalidArgument


class KeyPrefix(str):
    """A string that is put before a name to make a key, as in the redis-work-queue family.

    It is a `str`, so it can be used wherever a queue's name is wanted.

        >>> results = KeyPrefix("emails").concat(":result:")
        >>> results.of("42")
        'emails:result:42'
    """

    __slots__ = ()

    @property
    def prefix(self) -> str:
        """The string itself."""
        return str(self)

    def of(self, name: str) -> str:
        """Put the prefix before a name."""
        return f"{self}{name}"

    def concat(self, name: str) -> KeyPrefix:
        """Put the prefix before a name, giving a longer prefix."""
        return KeyPrefix(self.of(name))


class QueueKeys:
    """The keys that scripts declare, by the names they have there.

    Keys of single items (`:item:<id>`, `:lease:<id>`, `:dead:<id>`, `:result:<id>`) and of single schedules
    (`:schedule:<name>`) are made inside the scripts, from the prefix.
    """

    #: The names, which are also what follows the prefix. Two more: `inbox`, one per
    #: session, and `due`, which is a channel.
    NAMES = (
        *("queue", "processing", "deadlines", "scheduled", "ledger", "fence", "gone", "sessions", "dead"),
        *("schedules", "ticks", "events"),
    )

    def __init__(self, prefix: str, session: str) -> None:
        self.prefix = prefix.encode()
        self.session = session.encode()
        self._by_name = {name: f"{prefix}:{name}".encode() for name in self.NAMES}
        self._by_name["inbox"] = f"{prefix}:inbox:{session}".encode()
        self._by_name["due"] = f"{prefix}:due".encode()

    def __getitem__(self, name: str) -> bytes:
        return self._by_name[name]

    @property
    def data_pattern(self) -> bytes:
        """A glob that matches the data keys of this queue.

        It also matches strings of a queue whose name begins with `<this name>:item:`, which is why no queue
        should be called so.
        """
        return re.sub(rb"([\\*?\[\]])", rb"\\\1", self.prefix) + b":item:*"


def check_prefix(name: object) -> str:
    """Check a queue's name.

    Raises:
        InvalidArgument: If it is no string, empty, longer than 512 bytes, or not encodable.
    """
    allowed = "a text of 1 to 512 bytes in UTF-8"
    if not isinstance(name, str) or not name:
        raise InvalidArgument("name", name, allowed)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument("name", name, allowed) from error
    if size > 512:
        raise InvalidArgument("name", name, allowed)
    return str(name)


def check_hash_tag(prefix: str) -> None:
    """Check that all keys of a queue fall into one slot of a cluster.

    Raises:
        InvalidArgument: If the prefix holds no `{tag}`; the message proposes one.
    """
    start = prefix.find("{")
    if start < 0 or prefix.find("}", start) <= start + 1:
        raise InvalidArgument(
            "name", prefix, f"on a cluster, a name with a hash tag, such as {'{' + prefix + '}'!r}"
        )
