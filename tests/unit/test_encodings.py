"""The constants of `lua/lib/encodings.lua`: how they are read, and where their names and values may stand."""

from __future__ import annotations

import re

import pytest

from lua.compose.encodings import PLACE, put_in, read_constants
from lua.compose.linker import BrokenContract, split, strip
from lua.compose.writer import Sources

FILE = """\
-- Name numbers.

-- The first place.
local FIRST_PLACE = 5e15
local WAITING = 'lh:waiting '

-- Tokens are below it.
local TOKEN_LIMIT = 2 ^ 53
"""
CONSTANTS = {"FIRST_PLACE": "5e15", "WAITING": "'lh:waiting '", "TOKEN_LIMIT": "2 ^ 53"}
SCRIPT = """\
-- Count.
--
-- Keys: queue
-- Arguments:
--   prefix  text  the name: FIRST_PLACE
-- Reply: a number.
-- Cost: O(1).
-- Limits: none.
"""


def test_constants_are_read() -> None:
    assert read_constants(FILE) == CONSTANTS


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


def test_values_stand_in_place_of_names_but_not_in_headers_texts_and_fields() -> None:
    code = "\nlocal at = it.WAITING .. WAITING .. 'WAITING' + FIRST_PLACE\n"
    assert put_in(SCRIPT + code, CONSTANTS) == (
        SCRIPT + "\nlocal at = it.WAITING .. 'lh:waiting ' .. 'WAITING' + 5e15\n"
    )


def test_the_composed_text_has_the_value_and_an_unused_constant_is_refused() -> None:
    texts = {
        PLACE: "-- Name.\n\n-- A place.\nlocal FIRST_PLACE = 5e15\n",
        "room/count": SCRIPT + "\nreturn redis.call('LLEN', queue) + FIRST_PLACE, prefix\n",
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
