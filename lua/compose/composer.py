"""Composes each script of `lua/` from its file, and enforces the contract in its header.

The header of a script names its keys and arguments. The composer puts their positions in place of the names,
so no position is written by hand on either side. It adds the shared functions and the other scripts that the
script uses, and refuses a script with an undocumented or unused name or an event that is not declared.

Each script has one key more than its header names, the last: `none`, which never exists. While a slot of a
cluster is being moved, the server checks only whether the declared keys are there, and those of single items
are not declared. With `none`, which is nowhere, it refuses every script as a whole.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from leasequeue.keys import FORMAT, KEYS, NONE
from leasequeue.states import EVENTS, EventKind
from leasequeue.wire.scripts import Script
from lua.compose.calling import calls_in, in_order, key_names, put_in, stand_in
from lua.compose.linker import (
    BrokenContract,
    Library,
    Linked,
    check_calls,
    name_of,
    names_in,
    rename,
    split,
    strip,
)
from lua.compose.marks import Origin, marked, origins, unmarked
from lua.compose.nesting import declared_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: How an argument of a kind is read, if it is not used as it is. The value of a rest is the position before
#: its first value: `ARGV[name + 1]`.
KINDS = {"text": "", "integer": "tonumber({0})", "count": "tonumber({0})", "flag": "{0} == '1'", "rest": ""}
#: The rows of a rest in one call, and the value of a count: a script refuses more before it does anything.
MAX_ROWS = 1000
#: The keys that a script needs only if another feature is used, by what follows the queue's name: they are
#: not declared, and `control_key` stands for such a key where it is needed.
RARE_KEYS = {
    "history": "events:keep",
    **{name: name for name in ("cancelled", "control", "held", "lanes", "levels", "progress")},
    **{name: name for name in ("recent", "tags", "unsettled", "unstarted")},
    "too_new": f"too_new_for:{FORMAT}",
}
#: What stands for each of them in the code.
RARE_NAMES = {f"{name}_key": key for name, key in RARE_KEYS.items()}
#: What each script begins with: it refuses a queue in a format that it does not know. One that has looked for
#: rare keys, or read whether the queue is controlled, knows from there that most queues have no such key.
GUARD = (
    "if {seen}redis.call('EXISTS', too_new_key) == 1 then "
    "return redis.error_reply('FORMATTOONEW ' .. redis.call('GET', too_new_key) .. ' ' .. prefix) end"
)
SEEN_BY = ("controlled", "any_rare")
#: The scripts without it: they show who works, and what the server permits, in whatever format.
UNGUARDED = frozenset({"probe", "workers"})
SECTIONS = ("Keys", "Arguments", "Reply", "Cost", "Limits")
#: A call that emits events: the name of the event, or the code in its place. The functions that emit have the
#: name in the variable `what`.
_EMIT = re.compile(r"(?<!function )\bemit(?:_all|_elsewhere)?\((?!what\b)\s*(?:'(\w+)',|([^,\s]*))")
_COMMAND = re.compile(r"(?:\bp?call|in_chunks|\btry)\('([A-Z]+)'")
_ENTRY = re.compile(r"^  (\w+) +(\w+) +(\S.*)")


@dataclass(frozen=True)
class Composed(Script):
    """A composed script, and from which line of `lua/` each of its lines is."""

    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True)
class _Source:
    """A script that is read, and linked with the shared functions that it uses, but not composed yet.

    Attributes:
        path: Where its file is below `lua/`, without `.lua`.
        keys: The names of its keys, in order; the last is `none`.
        entries: Its arguments: name, kind and meaning.
        own: Its own code, without comments; its lines have marks.
        linked: All of its code.
    """

    path: str
    keys: tuple[str, ...]
    entries: list[tuple[str, str, str]]
    own: str
    linked: Linked

    @property
    def name(self) -> str:
        """Its name."""
        return name_of(self.path)

    @property
    def arguments(self) -> dict[str, str]:
        """The names and kinds of its arguments, in order."""
        return {argument: kind for argument, kind, _ in self.entries}

    @cached_property
    def calls(self) -> list[str]:
        """The scripts that it calls itself."""
        return calls_in(self.linked.names)

    def composed(
        self, keys_of: Callable[[str], Iterable[str]], first: Mapping[str, str] | None = None
    ) -> tuple[str, frozenset[EventKind]]:
        """Return its text, whose lines have marks, and the events that it emits itself.

        Args:
            keys_of: Returns the keys of a script that it calls.
            first: What stands in for the scripts that are called, by name, each after those that it calls.
        """
        code = self.linked.composed(first)
        preamble, places = _preamble(self.path, self.keys, self.arguments, row_size(self.entries))
        if "prefix" in places:
            places |= {name: f"({places['prefix']}..':{key}')" for name, key in RARE_NAMES.items()}
        _check_use(self.name, self.own, unmarked(code), [*self.keys[:-1], *self.arguments])
        places |= {f"keys_of_{one}": key_names(one, keys_of(one)) for one in self.calls}
        # Each local that functions use would cost about 0.1 µs a call, and more the more there are.
        text = "\n".join(part for part in (preamble, rename(code, places)) if part)
        return text, _events(self.name, unmarked(code))


def compose(path: str, texts: Mapping[str, str], library: Library) -> Composed:
    """Compose a script from the text of its file, and the shared functions and the scripts that it uses.

    Args:
        path: Where the script's file is below `lua/`, without `.lua`.
        texts: The texts of the files of all scripts, by these paths.
        library: The shared functions.
    """
    name, path_of = name_of(path), {name_of(one): one for one in texts}

    @cache
    def source_of(one: str) -> _Source:
        if one not in path_of:
            raise BrokenContract(f"{name}: Calls {one}: there is no such script")
        return _source(path_of[one], texts[path_of[one]], library)

    def keys_of(one: str) -> tuple[str, ...]:
        return source_of(one).keys

    own = source_of(name)
    called = in_order(name, lambda one: source_of(one).calls)
    parts = {one: source_of(one).composed(keys_of) for one in called}
    bodies = {one: part for one, (part, _) in parts.items()}
    composed, events = own.composed(keys_of, {f"call_{one}": stand_in(one, bodies[one]) for one in bodies})
    # Reading a local is faster than reading a field of a global, and scripts mostly call the server.
    composed = "local call = redis.call\n" + put_in(composed, bodies).replace("redis.call(", "call(")
    text = unmarked(composed)
    body = text.encode()
    sha = hashlib.sha1(body, usedforsecurity=False).hexdigest().encode()
    return Composed(
        name,
        own.keys,
        own.arguments,
        events.union(*(others for _, others in parts.values())),
        frozenset(_COMMAND.findall(text)),
        body,
        sha,
        tuple(bodies),
        tuple(origins(composed)),
    )


def _source(path: str, text: str, library: Library) -> _Source:
    """Read a script and link it."""
    name = name_of(path)
    header, code = split(text)
    sections = sections_of(name, header)
    keys = tuple(names_listed(sections["Keys"]))
    unknown = [key for key in keys if key not in KEYS or key == NONE]
    if unknown:
        raise BrokenContract(f"{name}: leasequeue.keys does not declare a key {unknown[0]}")
    entries = entries_of(name, sections["Arguments"])
    declared = [*keys, *(argument for argument, _, _ in entries)]
    twice = sorted({word for word in declared if declared.count(word) > 1})
    if twice:
        raise BrokenContract(f"{name}: {', '.join(twice)} is declared twice")
    taken = sorted({*declared, NONE} & library.givers.keys())
    if taken:
        raise BrokenContract(f"{name}: {taken[0]} is a name that {library.givers[taken[0]].path} gives")
    own = strip(marked(code, f"lua/{path}.lua", len(header) + 1))
    check_calls(name, names_in(own), names_listed(sections.get("Calls", [])))
    linked = library.link(name, own, names_listed(sections.get("Needs", [])), [*declared, NONE])
    if name not in UNGUARDED and "rare" in library.pieces:  # else it is none of `lua/`
        seen = next((f"{one} and " for one in SEEN_BY if one in linked.names), "")
        guard = strip(marked(GUARD.format(seen=seen), f"lua/{path}.lua", 1))
        linked = Linked(linked.blocks, f"{guard}\n{own}")
    return _Source(path, (*keys, NONE), entries, own, linked)


def sections_of(name: str, header: list[str]) -> dict[str, list[str]]:
    """Return the lines of each section of a script's header."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in header:
        title, colon, rest = line.partition(":")
        if colon and title in (*SECTIONS, "Calls", "Needs", "Uses"):
            current = found[title] = [rest.strip()] if rest.strip() else []
        else:
            current.append(line)
    missing = [title for title in SECTIONS if not any(found.get(title, []))]
    if missing or not header or not header[0].strip():
        raise BrokenContract(f"{name}: the header lacks {', '.join(missing) or 'a first sentence'}")
    return found


def names_listed(lines: list[str]) -> list[str]:
    """Return the names in a section that lists them with commas."""
    return re.findall(r"\w+", " ".join(lines))


def row_size(entries: list[tuple[str, str, str]]) -> int:
    """Return how many values the header names before `…` for a row of the rest; 0: there is no rest.

    Args:
        entries: The arguments: name, kind and meaning.
    """
    if not entries or entries[-1][1] != "rest":
        return 0
    values, more, _ = re.sub(r"\([^)]*\)", "", entries[-1][2]).partition(", …")
    return values.count(",") + 1 if more else 1


def entries_of(name: str, lines: list[str]) -> list[tuple[str, str, str]]:
    """Return the arguments in the lines of their section: name, kind, and meaning of one line or more."""
    entries: list[tuple[str, str, str]] = []
    for line in re.sub(r"\n {4,}", " ", "\n".join(lines)).splitlines():
        match = _ENTRY.match(line)
        if not match:
            raise BrokenContract(f"{name}: cannot read {line!r}: expected '  name  kind  meaning'")
        entries.append((match[1], match[2], match[3]))
    return entries


def _preamble(
    path: str, keys: tuple[str, ...], arguments: dict[str, str], row: int
) -> tuple[str, dict[str, str]]:
    """Return the code that reads arguments and checks limits, and what stands for the other names."""
    places = {key: f"KEYS[{i}]" for i, key in enumerate(keys, 1)}
    name, lines = name_of(path), []
    for i, (argument, kind) in enumerate(arguments.items(), 1):
        if kind not in KINDS:
            raise BrokenContract(f"{name}: {argument} has kind {kind!r}, expected one of {', '.join(KINDS)}")
        if kind == "rest" and i != len(arguments):
            raise BrokenContract(f"{name}: {argument} is a rest and must come last")
        if KINDS[kind]:
            lines.append(f"local {argument} = " + KINDS[kind].format(f"ARGV[{i}]"))
        else:
            places[argument] = str(i - 1) if kind == "rest" else f"ARGV[{i}]"
    too_much = [f"{argument} > {MAX_ROWS}" for argument, kind in arguments.items() if kind == "count"]
    if row:
        too_much.append(f"#ARGV > {len(arguments) - 1 + MAX_ROWS * row}")
    if too_much:
        refusal = f"return redis.error_reply('LIMIT {MAX_ROWS} rows')"
        lines.append(f"if {' or '.join(too_much)} then {refusal} end")
    return "\n".join(marked(line, f"lua/{path}.lua", 1) for line in lines), places


def _check_use(name: str, own: str, code: str, declared: list[str]) -> None:
    if re.search(r"\bKEYS\b|\bARGV *\[ *\d", code):
        raise BrokenContract(f"{name}: uses a position; name it in the header instead")
    used, redeclared = {*names_in(code)}, declared_in(code)
    if used & RARE_NAMES.keys():
        used.add("prefix")
    for word in declared:
        if word in redeclared:
            raise BrokenContract(f"{name}: {word} is also the name of a local")
        if word not in used:
            raise BrokenContract(f"{name}: {word} is declared and never used")
    if not own:
        raise BrokenContract(f"{name}: has no code")


def _events(name: str, code: str) -> frozenset[EventKind]:
    found = set()
    for event, other in _EMIT.findall(code):
        if other:
            raise BrokenContract(f"{name}: emits {other}: write the name of the event there, in quotes")
        if event not in EVENTS:
            raise BrokenContract(f"{name}: emits {event!r}, which leasequeue.states does not declare")
        found.add(EVENTS[event])
    return frozenset(found)
