"""The catalogue of `lua/`: each file's header is a contract, read here and enforced.

A script names its keys and arguments in its header. The catalogue puts a `local` of that name before
the body, pulls in shared pieces, and refuses what is undocumented or unused, so that no position is
ever written by hand on either side.
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.scripting.linker import BrokenContract, Library, names_in, split, strip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

KINDS = {"text": "{0}", "integer": "tonumber({0})", "flag": "{0} == '1'", "rest": ""}
SECTIONS = ("Keys", "Arguments", "Reply", "Cost", "Limits")
_ENTRY = re.compile(r"^  (\w+) +(\w+) +\S")


@dataclass(frozen=True)
class Script:
    """One composed script.

    Attributes:
        name: The file's name, without `.lua`.
        keys: The names of its keys, in order.
        arguments: Name -> kind of its arguments, in order; the last may be of kind `rest`.
        body: What is sent to the server.
        sha: The SHA-1 of the body, in hex, by which the server knows it.
    """

    name: str
    keys: tuple[str, ...]
    arguments: dict[str, str]
    body: bytes
    sha: bytes


def folder() -> Traversable:
    """Where the scripts are: inside the package, which may be in a zip file, or beside `src` in a checkout.

    Raises:
        FileNotFoundError: If neither is there; the package was not built properly.
    """
    package = resources.files("leasehold")
    for place in (package / "lua", Path(str(package)).parents[1] / "lua"):
        if (place / "lease_many.lua").is_file():
            return place
    raise FileNotFoundError(f"no Lua scripts in {package / 'lua'}: reinstall leasehold")


@cache
def load() -> dict[str, Script]:
    """Read, check and compose all scripts.

    Raises:
        BrokenContract: If a file does not keep to the form.
    """
    place = folder()
    library = Library(dict(_texts(place / "lib")))
    return {name: compose(name, text, library) for name, text in _texts(place)}


def _texts(place: Traversable) -> Iterator[tuple[str, str]]:
    """The name and the text of each file, in the order of the names."""
    for file in sorted(place.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".lua"):
            yield file.name.removesuffix(".lua"), file.read_text()


def compose(name: str, text: str, library: Library) -> Script:
    """Make a script of its file and the shared pieces that it uses.

    Raises:
        BrokenContract: If the header is incomplete, something is undocumented or unused, or a piece needs a
            key or an argument that the script does not declare.
    """
    header, code = split(text)
    sections = _sections(name, header)
    keys = tuple(entry for entry, _ in _entries(name, sections["Keys"]))
    entries = _entries(name, sections["Arguments"])
    declared = [*keys, *(argument for argument, _ in entries)]
    twice = sorted({word for word in declared if declared.count(word) > 1})
    if twice:
        raise BrokenContract(f"{name}: {', '.join(twice)} is declared twice")
    taken = sorted({*declared} & library.givers.keys())
    if taken:
        raise BrokenContract(f"{name}: {taken[0]} is a name that lib/{library.givers[taken[0]].name} gives")
    arguments = dict(entries)
    preamble, own = _preamble(name, keys, arguments), strip(code)
    pieces = library.link(name, own, re.findall(r"\w+", " ".join(sections.get("Needs", []))), declared)
    _check_use(name, own, f"{pieces}\n{own}", declared)
    composed = "\n".join(part for part in (preamble, pieces, own) if part)
    # A local is found faster than a field of a global, and most of a script's time is spent calling.
    body = ("local call = redis.call\n" + composed.replace("redis.call(", "call(")).encode()
    return Script(name, keys, arguments, body, hashlib.sha1(body, usedforsecurity=False).hexdigest().encode())


def _sections(name: str, header: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in header:
        title, colon, rest = line.partition(":")
        if colon and title in (*SECTIONS, "Needs"):
            current = found[title] = [rest.strip()] if rest.strip() else []
        else:
            current.append(line)
    missing = [title for title in SECTIONS if not any(found.get(title, []))]
    if missing or not header or not header[0].strip():
        raise BrokenContract(f"{name}: the header lacks {', '.join(missing) or 'a first sentence'}")
    return found


def _entries(name: str, lines: list[str]) -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = []
    for line in lines:
        match = _ENTRY.match(line)
        if not match:
            raise BrokenContract(f"{name}: cannot read {line!r}: expected '  name  kind  meaning'")
        entries.append((match[1], match[2]))
    return entries


def _preamble(name: str, keys: tuple[str, ...], arguments: dict[str, str]) -> str:
    lines = [f"local {key} = KEYS[{i}]" for i, key in enumerate(keys, 1)]
    for i, (argument, kind) in enumerate(arguments.items(), 1):
        if kind not in KINDS:
            raise BrokenContract(f"{name}: {argument} has kind {kind!r}, expected one of {', '.join(KINDS)}")
        if kind == "rest" and i != len(arguments):
            raise BrokenContract(f"{name}: {argument} is a rest and must come last")
        # A rest is the position before its first value: `ARGV[name + 1]`.
        lines.append(
            f"local {argument} = " + (str(i - 1) if kind == "rest" else KINDS[kind].format(f"ARGV[{i}]"))
        )
    return "\n".join(lines)


def _check_use(name: str, own: str, code: str, declared: list[str]) -> None:
    if re.search(r"\bKEYS\b|\bARGV *\[ *\d", code):
        raise BrokenContract(f"{name}: uses a position; name it in the header instead")
    used = names_in(code)
    for word in declared:
        if word not in used:
            raise BrokenContract(f"{name}: {word} is declared and never used")
    if not own:
        raise BrokenContract(f"{name}: has no code of its own")


def main(arguments: list[str]) -> None:
    """Write every composed script into a folder, for the Lua linters: `--dump FOLDER`."""
    if len(arguments) != 2 or arguments[0] != "--dump":
        raise SystemExit("usage: python -m leasehold.scripting.catalogue --dump FOLDER")
    target = Path(arguments[1])
    target.mkdir(parents=True, exist_ok=True)
    for script in load().values():
        (target / f"{script.name}.lua").write_bytes(script.body + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
