"""Reads the names of commands off a stream of requests."""

from __future__ import annotations

_END = b"\r\n"
#: No header of a request and no name of a command is longer.
_LONGEST = 512


class CommandReader:
    """Knows where each command begins in what a client sends: arrays of texts, as every client sends them.

    It keeps a few bytes at most, however large the texts are. What is no such array is passed over.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        #: Bytes of a text that have yet to go by.
        self._skip = 0
        self._named = True

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes, and return the names of the commands that have begun in them, in capitals."""
        self._rest += piece
        names: list[bytes] = []
        while self._rest and self._step(names):
            pass
        return names

    def _step(self, names: list[bytes]) -> bool:
        """Take in one header or (a piece of) one text; False: the next bytes are needed first."""
        if self._skip:
            passed = min(self._skip, len(self._rest))
            del self._rest[:passed]
            self._skip -= passed
            return True
        end = self._rest.find(_END, 0, _LONGEST)
        if end < 0:
            if len(self._rest) >= _LONGEST:
                self._rest.clear()
            return False
        kind, number = self._rest[:1], self._rest[1:end]
        value = int(number) if number.isdigit() else 0
        if kind == b"*":
            self._named = False
        elif kind == b"$" and not self._named:
            stop = end + 2 + value
            if len(self._rest) < stop + 2 and value <= _LONGEST:
                return False
            names.append(bytes(self._rest[end + 2 : stop]).upper())
            self._named = True
            self._skip = value + 2
        elif kind == b"$":
            self._skip = value + 2
        del self._rest[: end + 2]
        return True
