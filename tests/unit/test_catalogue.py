"""The catalogue: what it makes of a header, and what it refuses."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from leasehold.scripting import catalogue
from leasehold.scripting.catalogue import BrokenContract, compose

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
-- Add one to a number.
--
-- It may take more than a line to say so.
--
-- Keys:
--   numbers  hash  name -> number
--   names    set   those that were seen
-- Arguments:
--   prefix  text     the queue's name
--   by      integer  how much
--   loud    flag     whether to tell
--   rows    rest     name, …
-- Reply: the number.
-- Cost: O(1).
-- Limits: one at a time.

-- @include shout

-- A comment of no weight.
redis.call('SADD', names, prefix)
for at = rows + 1, #ARGV do
  redis.call('HINCRBY', numbers, ARGV[at], by) -- at last
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


def test_names_get_their_values_and_pieces_come_before_the_script() -> None:
    script = compose("add_one", SCRIPT, PIECES)
    assert (script.name, script.keys) == ("add_one", ("numbers", "names"))
    assert script.arguments == {"prefix": "text", "by": "integer", "loud": "flag", "rows": "rest"}
    lines = script.body.decode().splitlines()
    code = lines[lines.index("local numbers = KEYS[1]") :]
    assert [line.replace("redis.call(", "call(") for line in code] == [
        "local numbers = KEYS[1]",
        "local names = KEYS[2]",
        "local prefix = ARGV[1]",
        "local by = tonumber(ARGV[2])",
        "local loud = ARGV[3] == '1'",
        "local rows = 3",
        "local function shout(text)",
        "return text .. '!'",
        "end",
        "call('SADD', names, prefix)",
        "for at = rows + 1, #ARGV do",
        "call('HINCRBY', numbers, ARGV[at], by)",
        "end",
        "return loud and shout(prefix)",
    ]


def test_its_name_on_the_server_is_the_hash_of_what_is_sent() -> None:
    script = compose("add_one", SCRIPT, PIECES)
    assert script.sha == hashlib.sha1(script.body, usedforsecurity=False).hexdigest().encode()
    assert compose("add_one", SCRIPT, PIECES) == script


def test_comments_change_nothing() -> None:
    bare = re.sub(r"-- A comment.*\n| -- at last", "", SCRIPT)
    assert bare != SCRIPT
    assert compose("add_one", bare, PIECES).body == compose("add_one", SCRIPT, PIECES).body


#: A text of the script, or of the piece, what takes its place, and what the refusal says.
BROKEN = {
    "no header": (SCRIPT[: SCRIPT.index("-- @include")], "", "lacks Keys"),
    "no first sentence": ("-- Add one to a number.\n", "--\n", "lacks a first sentence"),
    "no keys": (
        "-- Keys:\n--   numbers  hash  name -> number\n--   names    set   those that were seen\n",
        "",
        "lacks Keys",
    ),
    "no key": (
        "--   numbers  hash  name -> number\n--   names    set   those that were seen\n",
        "",
        "lacks Keys",
    ),
    "no arguments": ("-- Arguments:\n", "-- Words:\n", "lacks Arguments"),
    "no reply": ("-- Reply: the number.\n", "", "lacks Reply"),
    "an empty reply": ("-- Reply: the number.", "-- Reply:", "lacks Reply"),
    "no cost": ("-- Cost: O(1).\n", "", "lacks Cost"),
    "no limits": ("-- Limits: one at a time.\n", "", "lacks Limits"),
    "a key without a meaning": ("set   those that were seen", "set", "cannot read"),
    "an argument on two lines": ("how much\n", "how much\n--   of it all\n", "expected one of"),
    "an unreadable line": ("--   by      integer  how much", "-- by: how much", "cannot read"),
    "an unknown kind": ("by      integer", "by      number", "by has kind 'number'"),
    "rest is not last": ("--   loud    flag", "--   loud    rest", "loud is a rest and must come last"),
    "a key that is not used": ("redis.call('SADD', names, prefix)\n", "", "names is declared and never used"),
    "an argument that is not used": (", by) -- at last", ", 1)", "by is declared and never used"),
    "a name only in a comment": (", by) -- at last", ", 1) -- not by", "by is declared and never used"),
    "a position of a key": ("numbers, ARGV[at]", "KEYS[1], ARGV[at]", "uses a position"),
    "a position of an argument": ("ARGV[at], by", "ARGV[2], by", "uses a position"),
    "a position with blanks": ("ARGV[at], by", "ARGV [ 2 ], by", "uses a position"),
    "an unknown piece": ("-- @include shout", "-- @include whisper", "no lua/lib/whisper.lua"),
    "a piece twice": (
        "-- @include shout\n",
        "-- @include shout\n-- @include shout\n",
        "shout is included twice",
    ),
    "no code": (SCRIPT[SCRIPT.index("-- A comment") :], "", "never used|no code of its own"),
    "two arguments of one name": ("--   loud    flag ", "--   by      flag ", "by is declared twice"),
    "a key and an argument of one name": (
        "--   by      integer",
        "--   names   integer",
        "names is declared twice",
    ),
}


@pytest.mark.parametrize(("old", "new", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_keep_to_the_form_is_refused(old: str, new: str, why: str) -> None:
    assert SCRIPT.count(old) == 1
    with pytest.raises(BrokenContract, match=f"^add_one: .*({why})"):
        compose("add_one", SCRIPT.replace(old, new), PIECES)


def test_a_piece_that_needs_what_is_not_there_is_refused() -> None:
    piece = SHOUT.replace("Needs: prefix", "Needs: prefix, now,\n--   voice")
    with pytest.raises(BrokenContract, match=r"^add_one: lib/shout needs now, voice$"):
        compose("add_one", SCRIPT, {"shout": piece})


def test_a_piece_may_need_what_another_one_before_it_gives() -> None:
    louder = (
        "-- Louder.\n--\n-- Needs: shout\n-- Gives: cry\n\nlocal function cry(text)\n  shout(text)\nend\n"
    )
    before = SCRIPT.replace("-- @include shout\n", "-- @include shout\n-- @include louder\n")
    assert b"local function cry" in compose("add_one", before, {**PIECES, "louder": louder}).body
    after = SCRIPT.replace("-- @include shout\n", "-- @include louder\n-- @include shout\n")
    with pytest.raises(BrokenContract, match="lib/louder needs shout"):
        compose("add_one", after, {**PIECES, "louder": louder})


def test_a_piece_may_not_give_a_name_that_is_taken() -> None:
    piece = SHOUT.replace("Gives: shout", "Gives: shout, numbers")
    with pytest.raises(BrokenContract, match="gives a name that is taken"):
        compose("add_one", SCRIPT, {"shout": piece})


def test_a_piece_may_need_nothing() -> None:
    piece = SHOUT.replace("Needs: prefix", "Needs: nothing")
    assert compose("add_one", SCRIPT, {"shout": piece}).body == compose("add_one", SCRIPT, PIECES).body


def test_all_scripts_are_read_once() -> None:
    assert catalogue.load() is catalogue.load()


def test_a_package_without_scripts_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("leasehold.scripting.catalogue.resources.files", lambda _: tmp_path / "a" / "b")
    with pytest.raises(FileNotFoundError, match="reinstall leasehold"):
        catalogue.folder()


def test_composed_scripts_are_dumped_for_the_linters(tmp_path: Path) -> None:
    catalogue.main(["--dump", str(tmp_path / "composed")])
    written = {path.stem: path.read_bytes() for path in (tmp_path / "composed").iterdir()}
    assert written == {script.name: script.body + b"\n" for script in catalogue.load().values()}
    with pytest.raises(SystemExit, match="usage"):
        catalogue.main([])
