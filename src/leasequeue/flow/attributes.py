"""The attributes of a flow: the input of a run, checked by their types, and those by which runs are found."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from leasequeue import codec
from leasequeue.describing import text_of
from leasequeue.durations import check_list
from leasequeue.errors import InvalidArgument, InvalidFlow, UnknownAttribute
from leasequeue.queue.runs.lookups import lookup_texts
from leasequeue.tasks.fitting import accepts_none, name_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: What `Flow.start` has arguments for, and what `FlowRuns.find` has.
OF_START = frozenset({"self", "id", "correlation", "priority"})
OF_FIND = frozenset({"fields", "children", "count"})


class _Nothing:
    """Stands in an error for an attribute that was not given."""

    def __repr__(self) -> str:
        return "nothing"


class Attributes:
    """The declared attributes of a flow.

    Args:
        flow: The name of the flow.
        types: The attributes, each with its type.
        lookup: Those by which runs are found.

    Attributes:
        types: The attributes, each with its type.
        lookup: Those by which runs are found.

    Raises:
        InvalidFlow: If the name or the type of one cannot be used.
        UnknownAttribute: If one of `lookup` is not among them.
    """

    def __init__(self, flow: str, types: Mapping[str, Any], lookup: Sequence[str]) -> None:
        self._flow = flow
        self.types = dict(types)
        self.lookup = tuple(check_list("lookup", lookup, "names of attributes"))
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        for name, kind in self.types.items():
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
                raise InvalidFlow(flow, f"the attribute {name!r} is to be named like a parameter")
            if name in OF_START or (name in OF_FIND and name in self.lookup):
                call = "start" if name in OF_START else "find"
                raise InvalidFlow(flow, f"the attribute {name!r} has the name of an argument of {call}")
            try:
                self._decoders[name] = codec.decoder(plain(kind))
            except codec.UnknownType as error:
                raise InvalidFlow(flow, f"the attribute {name!r}: {error}") from error
        for name in self.lookup:
            self.check(name)

    def check(self, name: str, *, found_by: bool = False) -> None:
        """Check that an attribute is declared.

        Args:
            name: Its name.
            found_by: Whether runs are to be found by it.

        Raises:
            UnknownAttribute: If not.
        """
        known = self.lookup if found_by else tuple(self.types)
        if name not in known:
            raise UnknownAttribute(self._flow, name, known, found_by=found_by)

    def encode(self, values: Mapping[str, Any]) -> dict[str, bytes]:
        """Write the attributes of a run as JSON. One that is left out is null, if its type has None.

        Raises:
            UnknownAttribute: If one is not declared.
            InvalidArgument: If one is missing, or is not of its type.
        """
        for name in values:
            self.check(name)
        return {name: self._encoded(name, values) for name in self.types}

    def lookups(self, written: Mapping[str, bytes]) -> dict[str, list[str]]:
        """Return the texts by which a run is found, for each attribute of `lookup`.

        Args:
            written: What `encode` has returned.
        """
        return {name: lookup_texts(_DECODE(written[name])) for name in self.lookup}

    def sought(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values to find runs by, as JSON has them.

        Of an attribute that is an array, a value is one element, and a list is several of them.

        Raises:
            UnknownAttribute: If runs are not found by one of these attributes.
            InvalidArgument: If a value cannot be written as JSON.
        """
        found = {}
        for name, value in values.items():
            self.check(name, found_by=True)
            try:
                found[name] = _DECODE(codec.encode(value))
            except Exception as error:
                raise InvalidArgument(name, value, f"a value for JSON ({text_of(error)})") from error
        return found

    def _encoded(self, name: str, values: Mapping[str, Any]) -> bytes:
        kind = self.types[name]
        if name not in values and not accepts_none(kind):
            raise InvalidArgument(
                name, _Nothing(), f"{name_of(kind)}: the flow {self._flow!r} needs this attribute"
            )
        value = values.get(name)
        try:
            written = codec.encode(value)
            self._decoders[name](written)
        except Exception as error:
            raise InvalidArgument(name, value, f"{name_of(kind)} ({text_of(error)})") from error
        return written


_DECODE = codec.decoder(Any)
