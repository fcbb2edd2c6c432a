"""Read the names of commands from a stream of requests."""

from __future__ import annotations

_END = b"\r\n"
#: The maximum length of a header, and of a command's name.
_MAX_LENGTH = 512


class CommandReader:
    """Find the commands in the bytes that a client sends: RESP arrays of bulk strings.

    It keeps at most a few bytes, however large the strings are. Bytes outside an array are ignored.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        #: Remaining bytes of the current string.
        self._skip = 0
        self._named = True

    def feed(self, piece: bytes) -> list[bytes]:
        """Read the next bytes, and return the names of the commands that begin in them, in upper case."""
        self._rest += piece
        names: list[bytes] = []
        while self._rest and self._step(names):
            pass
        return names

    def _step(self, names: list[bytes]) -> bool:
        """Read one header, or (part of) one string. Return False if more bytes are needed."""
        if self._skip:
            skipped = min(self._skip, len(self._rest))
            del self._rest[:skipped]
            self._skip -= skipped
            return True
        end = self._rest.find(_END, 0, _MAX_LENGTH)
        if end < 0:
            if len(self._rest) >= _MAX_LENGTH:
                self._rest.clear()
            return False
        kind, number = self._rest[:1], self._rest[1:end]
        value = int(number) if number.isdigit() else 0
        if kind == b"*":
            self._named = False
        elif kind == b"$" and not self._named:
            stop = end + 2 + value
            if len(self._rest) < stop + 2 and value <= _MAX_LENGTH:
                return False
            names.append(bytes(self._rest[end + 2 : stop]).upper())
            self._named = True
            self._skip = value + 2
        elif kind == b"$":
            self._skip = value + 2
        del self._rest[: end + 2]
        return True
