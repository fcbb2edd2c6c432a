"""The linker of `lua/`: give each script the shared functions that it uses, and no others.

A piece is a file in a folder `lib` of `lua/`. Its header names the keys and arguments that a script must
declare to use it, and the functions and values that it gives to scripts and to other pieces:

    -- Needs: prefix, queue
    -- Gives: waiting_ids

The linker finds what a script uses by the names in its code, directly or through other pieces. It takes the
functions that are used and, of the same pieces, all statements outside of functions. These statements run
before the script's own code, so they may read keys but must not write.

A script or a piece may call whole scripts, which its header names: see `lua.compose.calling`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from lua.compose.marks import marked, parted
from lua.compose.nesting import nest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_TEXT = re.compile(r"'[^']*'")
_TEXTS = re.compile(r"('[^'\n]*')")
_COMMENT = re.compile(r"(^|\s)--.*$")
#: Not where the text would mean something else without them: a number before two dots, a minus after a minus.
_SPACED = re.compile(r" *(==|~=|<=|>=|[=,+*/<>{}()]) *|(?<!\d) (\.\.) (?!\d)| (-) (?!-)")
#: A name that is no field: not after one dot, but perhaps after two.
_NAME = re.compile(r"(?<!\w)(?<!(?<!\.)\.)[A-Za-z_]\w*")
#: A name whose value is read: not that of a field of a table, as in `{name=1}`.
_READ = re.compile(_NAME.pattern + r"\b(?!=(?!=))")
_FUNCTION = re.compile(r"local function (\w+)")
#: A statement in one line.
_IN_ONE_LINE = re.compile(r"(if .* then|(?:local )?function .*?\)) (.+) end")
#: The name of the function that runs another script.
CALL = re.compile(r"call_(\w+)")


class BrokenContract(Exception):
    """A file of `lua/` breaks the rules of its form; the message names the file and the rule.

    All that reads such files raises it.
    """


@dataclass(frozen=True)
class Block:
    """A function of a piece, or the statements between two functions.

    Attributes:
        piece: The name of the piece.
        code: The code, without comments; its lines have marks.
        names: The names that occur in it.
    """

    piece: str
    code: str
    names: frozenset[str]

    @cached_property
    def function(self) -> str | None:
        """The name of the function; None: these are statements."""
        match = _FUNCTION.match(self.code)
        return match[1] if match else None


@dataclass(frozen=True)
class Piece:
    """One file in a folder `lib`.

    Attributes:
        path: Where it is below `lua/`, without `.lua`.
        needs: The keys and arguments that a script must declare to use it.
        gives: The names that scripts and other pieces may use.
        code: What follows the header; its lines have marks.
        calls: The scripts that its functions may call.
    """

    path: str
    needs: frozenset[str]
    gives: frozenset[str]
    code: str
    calls: frozenset[str] = frozenset()

    @cached_property
    def name(self) -> str:
        """The name of the file, which no other has."""
        return name_of(self.path)

    @cached_property
    def blocks(self) -> list[Block]:
        """Its functions and statements, in order, read when a script uses the piece."""
        blocks = [Block(self.name, part, names_in(part)) for part in _parts(self.code)]
        check_calls(self.path, names_in(strip(self.code)), self.calls)
        defined: set[str] = set()
        for block in blocks:
            defined |= {block.function} if block.function else block.names
        undefined = sorted(self.gives - defined)
        if undefined:
            raise BrokenContract(f"{self.path}: gives {', '.join(undefined)} and does not define it")
        return blocks

    @cached_property
    def functions(self) -> dict[str, Block]:
        """Its functions by name, also those that it does not give."""
        return {block.function: block for block in self.blocks if block.function}

    @cached_property
    def statements(self) -> list[Block]:
        """The blocks that are no functions."""
        return [block for block in self.blocks if not block.function]


@dataclass(frozen=True)
class Linked:
    """A script and the blocks that it uses, each after those that it uses itself."""

    blocks: list[Block]
    own: str

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that occur in any of it."""
        return names_in(self.own).union(*(block.names for block in self.blocks))

    def composed(self, first: Mapping[str, str] | None = None) -> str:
        """Return all of the code: statements in order, functions nested in each other.

        Args:
            first: Functions that use nothing of these blocks, by name, each after those that it uses.
        """
        name_of = {block: block.function for block in self.blocks if block.function}
        functions = {**(first or {}), **{name: block.code for block, name in name_of.items()}}
        statements = [block.code for block in self.blocks if block not in name_of]
        at_top, own = nest(functions, self.own, statements)
        before = (at_top.get(name) for name in first or ())
        parts = ((at_top.get(name_of[block]) if block in name_of else block.code) for block in self.blocks)
        return "\n".join(part for part in (*before, *parts, own) if part)


class Library:
    """All pieces, and which of them gives a name.

    Args:
        texts: The texts of their files, by their paths below `lua/`, without `.lua`.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.pieces = {name_of(path): read_piece(path, text) for path, text in texts.items()}
        self.givers: dict[str, Piece] = {}
        for piece in self.pieces.values():
            for name in sorted(piece.gives):
                other = self.givers.setdefault(name, piece)
                if other is not piece:
                    raise BrokenContract(f"{piece.path}: {other.path} also gives {name}")

    def check(self) -> None:
        """Read the code of all pieces, also of those that no script uses."""
        for piece in self.pieces.values():
            _ = piece.blocks

    def link(self, script: str, code: str, needs: Iterable[str], declared: Iterable[str]) -> Linked:
        """Find the code of the pieces that a script uses, each after those that it uses itself.

        Args:
            script: The script's name, for messages.
            code: The script's own code, without comments.
            needs: Pieces that the script needs although it uses none of their names.
            declared: The keys and arguments of the script.
        """
        unknown = {*needs} - self.pieces.keys()
        if unknown:
            raise BrokenContract(f"{script}: Needs {min(unknown)}: there is no such piece")
        used: set[Block] = set()
        found = [block for piece in needs for block in self.pieces[piece].statements]
        found += self._used_by(None, names_in(code))
        while found:
            block = found.pop()
            if block not in used:
                used.add(block)
                found += self._used_by(self.pieces[block.piece], block.names)
        blocks = [block for piece in self._ordered(script, used) for block in piece.blocks if block in used]
        holders: dict[str, Block] = {}
        for block in blocks:
            if block.function and (other := holders.setdefault(block.function, block)) is not block:
                both = " and ".join(self.pieces[one.piece].path for one in (other, block))
                raise BrokenContract(f"{script}: {both} have a function {block.function}")
        names = frozenset[str]().union(*(block.names & self.pieces[block.piece].needs for block in blocks))
        missing = sorted(names - {*declared})
        if missing:
            piece = next(self.pieces[block.piece] for block in blocks if missing[0] in block.names)
            raise BrokenContract(f"{script}: does not declare {', '.join(missing)}, which {piece.path} needs")
        return Linked(blocks, code)

    def _used_by(self, piece: Piece | None, names: frozenset[str]) -> Iterator[Block]:
        """Yield the blocks that code of a piece (None: of a script) uses directly, by the names in it."""
        for name in names:
            giver = piece if piece and name in piece.functions else self.givers.get(name)
            if giver:
                yield from giver.statements
                if name in giver.functions:
                    yield giver.functions[name]

    def _ordered(self, script: str, used: set[Block]) -> Iterator[Piece]:
        before: dict[str, set[str]] = {piece: set() for piece in sorted({block.piece for block in used})}
        for block in used:
            givers = {self.givers[name].name for name in block.names if name in self.givers}
            before[block.piece] |= givers - {block.piece}
        graph = {piece: sorted(givers) for piece, givers in before.items()}
        try:
            return (self.pieces[name] for name in [*TopologicalSorter(graph).static_order()])
        except CycleError as error:
            circle = " -> ".join(self.pieces[name].path for name in reversed(error.args[1]))
            raise BrokenContract(f"{script}: pieces use each other: {circle}") from error


def name_of(path: str) -> str:
    """Return the name of a file: its path below `lua/` without the folders."""
    return path.rpartition("/")[2]


def is_piece(path: str) -> bool:
    """Return whether a file of this path below `lua/` is a piece, rather than a script."""
    return "lib" in path.split("/")[:-1]


def read_piece(path: str, text: str) -> Piece:
    """Read the file of a piece.

    Args:
        path: Where it is below `lua/`, without `.lua`.
        text: Its text.
    """
    header, code = split(text)
    comment = "\n".join(header)
    calls = _listed(path, comment, "Calls") if "\nCalls:" in comment else frozenset[str]()
    code = marked(code, f"lua/{path}.lua", len(header) + 1)
    return Piece(path, _listed(path, comment, "Needs"), _listed(path, comment, "Gives"), code, calls)


def check_calls(file: str, names: Iterable[str], declared: Iterable[str]) -> None:
    """Check that a file calls the scripts that its header names, and no others."""
    called = {match[1] for name in names if (match := CALL.fullmatch(name))}
    for name in sorted(called ^ {*declared}):
        does = "calls it and does not say so" if name in called else "says so and does not call it"
        raise BrokenContract(f"{file}: Calls {name}: it {does}")


def split(text: str) -> tuple[list[str], str]:
    """Split the text of a file into the lines of its header, without their dashes, and its code."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return [line[2:].removeprefix(" ") for line in lines[:end]], "\n".join(lines[end:])


def strip(code: str) -> str:
    """Return code without comments, indentation, empty lines, and spaces beside operators.

    A statement in one line becomes three, as blocks begin and end at lines: see `lua.compose.nesting`.
    """
    lines = (
        (part, mark)
        for line, mark in map(parted, code.splitlines())
        for part in _spread(_COMMENT.sub("", line).strip())
    )
    return "".join(
        part if part.startswith("'") else _SPACED.sub(r"\1\2\3", part)
        for part in _TEXTS.split("\n".join(line + mark for line, mark in lines if line))
    )


def _spread(line: str) -> tuple[str, ...]:
    match = _IN_ONE_LINE.fullmatch(line)
    return (match[1], match[2], "end") if match else (line,)


def names_in(code: str) -> frozenset[str]:
    """Return the names in code that has no comments: not those of fields, and nothing inside of texts."""
    return frozenset(_NAME.findall(_TEXT.sub("''", code)))


def rename(code: str, names: Mapping[str, str]) -> str:
    """Return code with other text in place of these names, but not of fields in tables."""
    return "".join(
        part if part.startswith("'") else _READ.sub(lambda match: names.get(match[0], match[0]), part)
        for part in _TEXTS.split(code)
    )


def _listed(path: str, header: str, title: str) -> frozenset[str]:
    match = re.search(rf"^{title}:\s+((?:\w+,\s+)*\w+)$", header, re.MULTILINE)
    if not match:
        raise BrokenContract(f"{path}: the header lacks {title}")
    return frozenset(re.findall(r"\w+", match[1])) - {"nothing"}


def _parts(code: str) -> Iterator[str]:
    """Yield the code of each function of a piece, and what is between two functions."""
    function: str | None = None
    lines: list[str] = []
    parts = [lines]
    for line in code.splitlines():
        start = _FUNCTION.match(line)
        if start:
            function, lines = start[1], []
            parts.append(lines)
        lines.append(line)
        if function and re.fullmatch(r"(local function .* )?end", parted(line)[0]):
            function, lines = None, []
            parts.append(lines)
    stripped = (strip("\n".join(part)) for part in parts)
    return (part for part in stripped if part)
