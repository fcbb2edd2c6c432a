"""How scripts are composed: names and pieces, the section `Uses`, constants, and which files are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasequeue.states import EventKind
from lua.compose import composer, writer
from lua.compose.encodings import PLACE, read_constants
from lua.compose.linker import BrokenContract, Library, split, strip
from lua.compose.writer import Sources, check_uses, write_uses

if TYPE_CHECKING:
    from lua.compose.composer import Composed

SCRIPT = """\
-- Add one to a number.
--
-- It may take more than a line to say so.
--
-- Keys: ledger,
--   gone
-- Arguments:
--   prefix  text     the queue's name
--   by      integer  how much
--   loud    flag     whether to shout
--   rows    rest     name, …
-- Reply: the number.
-- Cost: O(1).
-- Limits: one at a time.

-- A comment of no weight.
redis.call('SADD', gone, prefix)
for at = rows + 1, #ARGV do
  redis.call('HINCRBY', ledger, ARGV[at], by) -- at last
end
return loud and shout(prefix)
"""
SHOUT = """\
-- Say it louder.
--
-- Needs: prefix
-- Gives: shout

local function shout(text)
  return text .. '!'
end
"""
PIECES = {"shout": SHOUT}


def library(pieces: dict[str, str]) -> Library:
    return Library({f"lib/{name}": text for name, text in pieces.items()})


def compose(name: str, text: str, pieces: dict[str, str]) -> Composed:
    return composer.compose(f"room/{name}", {f"room/{name}": text}, library(pieces))


def test_positions_replace_names_and_shared_functions_come_before_the_script() -> None:
    script = compose("add_one", SCRIPT, PIECES)
    assert (script.name, script.keys) == ("add_one", ("ledger", "gone", "none"))
    assert script.arguments == {"prefix": "text", "by": "integer", "loud": "flag", "rows": "rest"}
    lines = script.body.decode().splitlines()
    assert lines == [
        "local call = redis.call",
        "local by = tonumber(ARGV[2])",
        "local loud = ARGV[3] == '1'",
        "if #ARGV > 1003 then return redis.error_reply('LIMIT 1000 rows') end",
        "local function shout(text)",
        "return text..'!'",
        "end",
        "call('SADD',KEYS[2],ARGV[1])",
        "for at=3+1,#ARGV do",
        "call('HINCRBY',KEYS[1],ARGV[at],by)",
        "end",
        "return loud and shout(ARGV[1])",
    ]


#: A part of the script, its replacement, and a part of the error.
BROKEN = {
    "no header": (SCRIPT[: SCRIPT.index("-- A comment")], "", "lacks Keys"),
    "no first sentence": ("-- Add one to a number.\n", "--\n", "lacks a first sentence"),
    "no key": ("-- Keys: ledger,\n--   gone\n", "-- Keys:\n", "lacks Keys"),
    "an unknown key": (
        "-- Keys: ledger,",
        "-- Keys: ledger, numbers,",
        "leasequeue.keys does not declare a key numbers",
    ),
    "an empty reply": ("-- Reply: the number.", "-- Reply:", "lacks Reply"),
    **{f"no {title}": (f"-- {title}:", f"-- No {title}:", f"lacks {title}") for title in composer.SECTIONS},
    "an argument without a meaning": ("integer  how much", "integer", "cannot read"),
    "an argument on two lines": ("how much\n", "how much\n--   of it all\n", "expected one of"),
    "an unreadable line": ("--   by      integer  how much", "-- by: how much", "cannot read"),
    "an unknown kind": ("by      integer", "by      number", "by has kind 'number'"),
    "rest is not last": ("--   loud    flag", "--   loud    rest", "loud is a rest and must come last"),
    "a key that is not used": ("redis.call('SADD', gone, prefix)\n", "", "gone is declared and never used"),
    "an argument that is not used": (", by) -- at last", ", 1)", "by is declared and never used"),
    "a name only in a comment": (", by) -- at last", ", 1) -- not by", "by is declared and never used"),
    "a local with the name of a key": (
        "for at = rows",
        "for gone = rows",
        "gone is also the name of a local",
    ),
    "a position of a key": ("ledger, ARGV[at]", "KEYS[1], ARGV[at]", "uses a position"),
    "a position of an argument": ("ARGV[at], by", "ARGV[2], by", "uses a position"),
    "a position with blanks": ("ARGV[at], by", "ARGV [ 2 ], by", "uses a position"),
    "an unknown piece": (
        "-- Limits: one at a time.\n",
        "-- Limits: one at a time.\n-- Needs: whisper\n",
        "Needs whisper: there is no such piece",
    ),
    "an argument that a piece gives": (
        "--   loud    flag ",
        "--   shout   flag ",
        "a name that lib/shout gives",
    ),
    "no code": (SCRIPT[SCRIPT.index("-- A comment") :], "", "never used|has no code"),
    "two arguments of one name": ("--   loud    flag ", "--   by      flag ", "by is declared twice"),
    "a key and an argument of one name": (
        "--   by      integer",
        "--   gone    integer",
        "gone is declared twice",
    ),
}


@pytest.mark.parametrize(("old", "new", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_script_that_breaks_a_rule_is_refused(old: str, new: str, why: str) -> None:
    assert SCRIPT.count(old) == 1
    with pytest.raises(BrokenContract, match=f"^add_one: .*({why})"):
        compose("add_one", SCRIPT.replace(old, new), PIECES)


def piece(gives: str, code: str, needs: str = "nothing") -> str:
    return f"-- A piece.\n--\n-- Needs: {needs}\n-- Gives: {gives}\n\n{code}\n"


def function(name: str, code: str = "return 1") -> str:
    return f"local function {name}()\n  {code}\nend\n"


def composed(code: str, pieces: dict[str, str], needs: str = "") -> list[str]:
    header = "-- Do.\n-- Keys: queue\n-- Arguments:\n--   prefix  text  a name\n"
    header += f"-- Reply: one.\n-- Cost: O(1).\n-- Limits: none.\n-- Needs: {needs}\n\n"
    text = header + f"redis.call('LLEN', queue, prefix)\n{code}\n"
    lines = compose("do", text, pieces).body.decode().splitlines()
    return lines[1 : lines.index("call('LLEN',KEYS[1],ARGV[1])")]


def test_a_script_gets_only_the_functions_that_it_uses() -> None:
    pieces = {"both": piece("one, two", function("one") + "\n" + function("two"))}
    assert composed("return two()", pieces) == ["local function two()", "return 1", "end"]
    assert composed("return 1", pieces) == []


def test_two_functions_of_one_name_in_a_script_are_refused() -> None:
    """The pieces may have them, if no script uses both."""
    pieces = {
        "one": piece("one", function("own") + function("one", "return own()")),
        "two": piece("two", function("own", "return 2") + function("two", "return own()")),
    }
    assert "return 2" in composed("return two()", pieces)
    with pytest.raises(
        BrokenContract, match=r"^do: lib/(one and lib/two|two and lib/one) have a function own$"
    ):
        composed("return one() + two()", pieces)


def test_a_statement_in_one_line_is_composed_as_one_of_several() -> None:
    spread = function("one", "if prefix then\n    return 2\n  end") + function("two") + function("three")
    in_one_line = (
        "local function one()\n  if prefix then return 2 end\nend\n"
        "local function two() return 1 end\nlocal function three() return 1 end\n"
    )
    for code in ("return one() + three()", "if prefix then\n  return one() + two()\nend"):
        wanted = composed(code, {"some": piece("one, two, three", spread, needs="prefix")})
        short = code.replace("\n ", "").replace("\n", " ")
        assert composed(short, {"some": piece("one, two, three", in_one_line, needs="prefix")}) == wanted


def test_a_piece_that_needs_an_undeclared_name_is_refused() -> None:
    needy = SHOUT.replace("Needs: prefix", "Needs: prefix, now,\n--   voice").replace("'!'", "now .. voice")
    with pytest.raises(
        BrokenContract, match=r"^add_one: does not declare now, voice, which lib/shout needs$"
    ):
        compose("add_one", SCRIPT, {"shout": needy})


def test_pieces_that_use_each_other_are_refused() -> None:
    pieces = {
        "a": piece("first", function("first", "return second()")),
        "b": piece("second", function("second", "return first()")),
    }
    with pytest.raises(
        BrokenContract, match=r"^do: pieces use each other: lib/[ab] -> lib/[ab] -> lib/[ab]$"
    ):
        composed("return first()", pieces)


def test_two_pieces_may_not_give_the_same_name() -> None:
    with pytest.raises(BrokenContract, match="lib/b: lib/a also gives one"):
        library({"a": piece("one", function("one")), "b": piece("one", function("one"))})


@pytest.mark.parametrize("title", ["Needs", "Gives"])
def test_a_piece_without_a_part_of_its_header_is_refused(title: str) -> None:
    with pytest.raises(BrokenContract, match=f"lib/shout: the header lacks {title}"):
        library({"shout": SHOUT.replace(f"-- {title}:", f"-- No {title}:")})


def test_a_piece_must_define_what_it_gives() -> None:
    with pytest.raises(BrokenContract, match="lib/shout: gives whisper and does not define it"):
        library({"shout": SHOUT.replace("Gives: shout", "Gives: shout, whisper")}).check()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("emit('aded', prefix)", "emits 'aded', which leasequeue.states does not declare"),
        ("emit_all('', {})", "emits .*: write the name"),
        ("emit(\n  name or 'added', prefix)", "emits name: write the name of the event there, in quotes"),
    ],
)
def test_an_event_that_is_not_declared_is_refused(call: str, why: str) -> None:
    with pytest.raises(BrokenContract, match=f"^do: {why}"):
        composed(call, {})


def calling(code: str, calls: str, keys: str = "queue") -> str:
    head = (
        f"-- Do.\n-- Keys: {keys}\n-- Arguments:\n--   prefix  text  a name\n-- Reply: one.\n-- Cost: O(1).\n"
    )
    calls = f"-- Calls: {calls}\n" if calls else ""
    uses = "".join(f"redis.call('LLEN', {key}, prefix)\n" for key in keys.split(", "))
    return f"{head}-- Limits: none.\n{calls}\n{uses}{code}\n"


def called(code: str, calls: str, pieces: dict[str, str] | None = None, **others: str) -> Composed:
    texts = {f"room/{name}": text for name, text in {**others, "do": calling(code, calls)}.items()}
    return composer.compose("room/do", texts, library(pieces or {}))


def test_a_script_that_is_called_is_a_function_in_the_branch_that_calls_it() -> None:
    other = calling("emit('added', queue)\nreturn 1", "", "dead, queue")
    code = "if prefix then\nreturn call_other(keys_of_other, { prefix })\nend\nreturn 2"
    script = called(code, "other", other=other)
    assert script.body.decode().splitlines() == [
        "local call = redis.call",
        "call('LLEN',KEYS[1],ARGV[1])",
        "if ARGV[1] then",
        "local function call_other(KEYS,ARGV)",
        "call('LLEN',KEYS[1],ARGV[1])",
        "call('LLEN',KEYS[2],ARGV[1])",
        "emit('added',KEYS[2])",
        "return 1",
        "end",
        "return call_other({':dead',",
        "':queue',",
        "':none'},{ARGV[1]})",
        "end",
        "return 2",
    ]
    assert script.events == {EventKind.ADDED}
    assert script.commands == {"LLEN"}
    assert script.calls == ("other",)


@pytest.mark.parametrize(
    ("code", "calls", "why"),
    [
        ("return call_gone()", "gone", "Calls gone: there is no such script"),
        ("return call_other()", "", "Calls other: it calls it and does not say so"),
        ("return 1", "other", "Calls other: it says so and does not call it"),
        ("return call_back()", "back", "scripts call each other: (do -> back -> do|back -> do -> back)"),
        ("return call_own(keys_of_own)", "own", "own: has the key of a session"),
    ],
)
def test_a_call_that_cannot_be_is_refused(code: str, calls: str, why: str) -> None:
    others = {
        "other": calling("", ""),
        "back": calling("return call_do()", "do"),
        "own": calling("", "", "inbox"),
    }
    with pytest.raises(BrokenContract, match=why):
        called(code, calls, {}, **others)


def test_a_piece_says_what_it_calls() -> None:
    pieces = {"one": piece("one", function("one", "return call_other()"))}
    with pytest.raises(BrokenContract, match="lib/one: Calls other: it calls it and does not say so"):
        called("return one()", "", pieces, other=calling("", ""))


ROOT = Path(__file__).parents[2]

CHUNKS = """\
-- Send values in chunks.
--
-- Needs: prefix
-- Gives: in_chunks, read_in_chunks

local function size()
  return is_ours()
end

local function in_chunks()
  return size() + in_chunks()
end

local function read_in_chunks()
  return in_chunks()
end
"""
FOREIGN = "-- Ask.\n--\n-- Needs: nothing\n-- Gives: is_ours\n\nlocal function is_ours() return 1 end\n"


def test_the_composer_goes_by_the_code_alone() -> None:
    texts = Sources.read().texts
    wrong = {
        name: text.replace("\n-- Uses: ", "\n-- Uses: progress (fsck_types), one,\n--   ")
        for name, text in texts.items()
    }
    assert wrong != texts
    ours, theirs = (
        [
            composer.compose(path, sources.scripts, sources.library).sha
            for path in sources.scripts
            if "/fsck_" in path
        ]
        for sources in (Sources(texts), Sources(wrong))
    )
    assert ours == theirs != []


def test_the_headers_are_written_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lua/lib").mkdir(parents=True)
    for name, text in (("lib/chunks", CHUNKS), ("lib/foreign", FOREIGN)):
        (tmp_path / f"lua/{name}.lua").write_text(text)
    monkeypatch.setattr(writer, "ROOT", tmp_path)
    with pytest.raises(BrokenContract, match=r"in lua/lib/chunks\.lua: run `make format`$"):
        check_uses()
    write_uses()
    check_uses()
    assert "-- Uses: is_ours (foreign)\n" in (tmp_path / "lua/lib/chunks.lua").read_text()
    assert (tmp_path / "lua/lib/foreign.lua").read_text() == FOREIGN


def test_the_headers_of_this_checkout_are_those_that_are_written() -> None:
    command = [sys.executable, "-S", "-m", "lua.compose", "--uses", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


FILE = """\
-- Name numbers.

-- The first place.
local FIRST_PLACE = 5e15
local WAITING = 'lh:waiting '

-- Tokens are below it.
local TOKEN_LIMIT = 2 ^ 53
"""
COUNTING = """\
-- Count.
--
-- Keys: queue
-- Arguments:
--   prefix  text  the name: FIRST_PLACE
-- Reply: a number.
-- Cost: O(1).
-- Limits: none.
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("local WAITING = 1", "defines WAITING twice"),
        ("local SUM = 1 + 2", "line 9 is no `local NAME = number or text`: local SUM = 1 + 2"),
        ("local small = 1", "line 9 is no"),
        ("\nlocal BARE = 1", "no comment says what BARE encodes"),
    ],
)
def test_a_wrong_constant_is_refused(line: str, message: str) -> None:
    with pytest.raises(BrokenContract, match=re.escape(f"{PLACE}: {message}")):
        read_constants(f"{FILE}{line}\n")


def test_the_composed_text_has_the_value_and_an_unused_constant_is_refused() -> None:
    texts = {
        PLACE: "-- Name.\n\n-- A place.\nlocal FIRST_PLACE = 5e15\n",
        "room/count": COUNTING + "\nreturn redis.call('LLEN', queue) + FIRST_PLACE, prefix\n",
    }
    assert b"return call('LLEN',KEYS[1])+5e15,ARGV[1]" in Sources(texts).compose()["count"].body
    assert "-- Uses: FIRST_PLACE (encodings)\n" in Sources(texts).with_uses()["room/count"]
    texts["room/count"] = texts["room/count"].replace("+ FIRST_PLACE", "+ 1")
    with pytest.raises(BrokenContract, match=f"^{PLACE}: nothing uses FIRST_PLACE$"):
        Sources(texts).compose()


def test_no_other_file_writes_a_value_that_has_a_name() -> None:
    """Small numbers and single characters mean many things; these do not."""
    sources = Sources.read()
    telling = {name: value for name, value in sources.constants.items() if len(value.strip("'")) > 3}
    codes = {path: strip(split(text)[1]) for path, text in sources.texts.items() if path != PLACE}
    found = [
        f"lua/{path}.lua writes {value}: write {name}"
        for path, code in codes.items()
        for name, value in telling.items()
        if re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", code)
    ]
    assert found == []
