"""The section `Uses` in the headers of `lua/`: which foreign names the code uses, and what gives them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lua.compose import writer
from lua.compose.composer import compose
from lua.compose.linker import BrokenContract, Library
from lua.compose.uses import with_uses
from lua.compose.writer import Sources, check_uses, write_uses

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
LIBRARY = Library({"chunks": CHUNKS, "foreign": FOREIGN})
HEADER = "-- Do.\n--\n-- Keys: queue\n-- Limits: as many as\n--   there are.\n"


def written(code: str, header: str = HEADER, library: Library = LIBRARY) -> str:
    """Return the section that is written into the header of a script; its other lines must stay."""
    text = with_uses(f"{header}\n{code}\n", library)
    assert text.startswith(HEADER)
    assert text.endswith(f"\n\n{code}\n")
    return text.removeprefix(HEADER).removesuffix(f"\n{code}\n")


@pytest.mark.parametrize(
    "code",
    [
        "redis.call('LLEN', queue)",
        "-- in_chunks is for others\nreturn 1 -- is_ours",
        "return 'is_ours' .. t.in_chunks",
        "local mine = size()",
    ],
)
def test_a_file_that_uses_no_foreign_name_has_no_such_line(code: str) -> None:
    assert written(code) == ""
    assert written(code, f"{HEADER}-- Uses: is_ours (foreign)\n") == ""


def test_names_are_sorted_and_in_groups_by_what_gives_them() -> None:
    code = "if is_ours() then\n  return read_in_chunks() + in_chunks() + in_chunks()\nend"
    assert written(code) == "-- Uses: in_chunks, read_in_chunks (chunks), is_ours (foreign)\n"


def test_the_keys_of_rare_features_and_other_scripts_are_named_as_well() -> None:
    code = "return call_other(keys_of_other, held_key) + call_a(is_ours)"
    assert written(code) == (
        "-- Uses: held_key (RARE_KEYS), call_a (a), is_ours (foreign), call_other, keys_of_other (other)\n"
    )


def test_what_a_piece_defines_itself_is_not_foreign() -> None:
    text = with_uses(CHUNKS, LIBRARY, LIBRARY.pieces["chunks"])
    gives = "-- Gives: in_chunks, read_in_chunks\n"
    assert text == CHUNKS.replace(gives, f"{gives}-- Uses: is_ours (foreign)\n")
    assert with_uses(text, LIBRARY, LIBRARY.pieces["chunks"]) == text
    assert with_uses(FOREIGN, LIBRARY, LIBRARY.pieces["foreign"]) == FOREIGN


def test_lines_have_at_most_110_characters_and_are_written_once() -> None:
    names = [f"name_{n}" for n in range(40)]
    functions = "\n".join(f"local function {name}() return 1 end" for name in names)
    piece = f"-- Much.\n--\n-- Needs: nothing\n-- Gives: {', '.join(names)}\n\n{functions}\n"
    code = f"return {' + '.join(names)}"
    section = written(code, library=Library({"much": piece}))
    lines = section.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) in range(100, 111)
    assert lines[0].startswith("-- Uses: name_0, name_1, name_10,")
    assert all(line.startswith("--   name_") for line in lines[1:])
    assert written(code, HEADER + section, Library({"much": piece})) == section


def test_the_composer_goes_by_the_code_alone() -> None:
    texts = Sources.read().texts
    wrong = {
        name: text.replace("\n-- Uses: ", "\n-- Uses: progress (fsck_types), one,\n--   ")
        for name, text in texts.items()
    }
    assert wrong != texts
    ours, theirs = (
        [compose(path, sources.scripts, sources.library).sha for path in sources.scripts if "/fsck_" in path]
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
