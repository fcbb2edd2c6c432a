"""Reading a TOML file table by table, noting each problem with its place and its line."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.autoscale.config.keys import ABSENT, OTHER_NAMES, REQUIRED, Unfit
from leasequeue.describing import shown
from leasequeue.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from leasequeue.autoscale.config.keys import Key

#: The keys and the indexes that lead to a value.
Place: TypeAlias = "tuple[str | int, ...]"

_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_NAMES = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_TABLE = re.compile(rf"\s*(\[\[?)\s*({_NAMES})\s*\]")
_KEY = re.compile(rf"\s*({_NAMES})\s*=")
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

#: A value that is not shown in errors, as it may contain a password.
_SECRET = ("url", "env")
#: How many characters of a value an error shows.
_SHOWN = 60


class ConfigFile:
    """A TOML file, and the problems that were found in it.

    Args:
        path: The file.

    Raises:
        InvalidConfig: If it cannot be read, or is no TOML.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_bytes().decode()
            self.values = tomllib.loads(text)
        except OSError as error:
            raise InvalidConfig(path, "", error.strerror or str(error), "a file that can be read") from error
        except UnicodeDecodeError as error:
            raise InvalidConfig(path, "", "it is not UTF-8", "a TOML file") from error
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(path, "", f"it is not TOML: {error}") from error
        self._lines = dict(_lines(text))
        self._problems: list[InvalidConfig] = []
        #: The places that have a problem.
        self.noted: set[Place] = set()

    def note(self, place: Place, problem: str, expected: str = "") -> None:
        """Note a problem."""
        self.noted.add(place)
        line = self._line_of(place)
        self._problems.append(InvalidConfig(self.path, described(place), problem, expected, line=line))

    def read(self, place: Place, values: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
        """Return what the keys of a table say, and the defaults of those that are missing.

        A key with a problem has its default, if there is one, so that the rest can be checked.
        """
        for name in values:
            if name not in keys:
                self.note((*place, name), "unknown key", _known(name, keys))
        read = {name: self._read_key(place, name, values, key) for name, key in keys.items()}
        return {name: value for name, value in read.items() if value is not ABSENT and value is not REQUIRED}

    def fits(self, place: Place, value: Any, key: Key) -> Any:
        """Return a value as the program takes it; note a problem, and return ABSENT, if it does not fit."""
        try:
            return key.read(value)
        except Unfit as unfit:
            secret = any(name in place for name in _SECRET)
            got = "this cannot be used" if secret else f"got {_shown(value)}"
            self.note(place, str(unfit) or got, "" if str(unfit) else key.expected)
            return ABSENT

    def finish(self) -> None:
        """Raise what was found.

        Raises:
            InvalidConfig: The first problem; the others are in its attribute `others`.
        """
        if self._problems:
            first, *others = sorted(self._problems, key=lambda one: one.line or 0)
            raise InvalidConfig(
                first.path, first.place, first.problem, first.expected, line=first.line, others=others
            )

    # -------------------------------------------------------------------------- inside

    def _read_key(self, place: Place, name: str, values: Mapping[str, Any], key: Key) -> Any:
        if name in values:
            value = self.fits((*place, name), values[name], key)
            return key.default if value is ABSENT else value
        if key.default is REQUIRED:
            self.note((*place, name), "missing", key.expected)
        return key.default

    def _line_of(self, place: Place) -> int | None:
        """Return the line of a place; of what is in none, that of the table that it belongs to."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place)


def described(place: Place) -> str:
    """Return a place as text: `deployments.gpu.tiers[1].max_units`."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else repr(part))
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like another one; empty: none is."""
    return next(iter(difflib.get_close_matches(name, [*known], n=1)), "")


def _known(name: str, keys: Mapping[str, Key]) -> str:
    """Return what to write instead of an unknown key."""
    if (other := OTHER_NAMES.get(name)) is not None:
        return other
    close = nearest(name.lower().replace("-", "_"), keys)
    return close or (f"one of {', '.join(keys)}" if keys else "no keys")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, str) else shown(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _lines(text: str) -> Iterator[tuple[Place, int]]:
    """Yield the places of tables and keys, and their lines. What stands inside inline tables has none."""
    table: Place = ()
    counts: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _with_indexes(_names(header[2]), counts)
            if header[1] == "[[":
                index = counts[table] = counts.get(table, -1) + 1
                table = (*table, index)
            yield table, number
        elif key := _KEY.match(line):
            yield (*table, *_names(key[1])), number


def _with_indexes(names: Place, counts: Mapping[Place, int]) -> Place:
    """Return a place with the index of the last table of each list of tables on its way."""
    place: Place = ()
    for at, name in enumerate(names, 1):
        place = (*place, name)
        if at < len(names) and place in counts:
            place = (*place, counts[place])
    return place


def _names(text: str) -> Place:
    return tuple(re.sub(r"""^["']|["']$""", "", name) for name in re.findall(_NAME, text))
