"""Tables of `lua/` that several files add fields to: each field is declared, with the files that set it.

A comment where the table is made declares them:

    -- Fields of `run`, or `it`:
    --   led  text  the traces of what led to the stage in hand (run_finish, run_step)
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from lua.compose.linker import name_of
from lua.compose.writer import Sources

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = Sources.read().texts
#: Names of tables in several files, of which none leaves its file.
NOT_SHARED = {"sent", "state"}
_DECLARED = re.compile(r"^-- Fields of `(\w+)`(?:, or `(\w+)`)?:\n((?:--   .*\n)+)", re.MULTILINE)
_FIELD = re.compile(r"^(\w+) +(text|number|flag|function|list|table) +\S.* \((\w+(?:, \w+)*)\)$")
#: Each way to set fields: one or more of them at once, or a function.
_TARGETS = re.compile(r"^ *((?:[\w.\[\]# +]+, )*[\w.\[\]# +]+) =(?: |$)|^ *function ([\w.]+)\(", re.MULTILINE)

#: What comes before a statement in one line.
_GUARD = re.compile(r"^ *if .* then (?=\S)", re.MULTILINE)


def declared() -> dict[str, tuple[tuple[str, ...], dict[str, set[str]]]]:
    """Return the names of each declared table, by the first, and which files set each of its fields."""
    found: dict[str, tuple[tuple[str, ...], dict[str, set[str]]]] = {}
    for path, text in TEXTS.items():
        for name, other, lines in _DECLARED.findall(text):
            fields = {}
            for entry in re.sub(r"\n--       ", " ", lines).splitlines():
                match = _FIELD.match(entry.removeprefix("--   "))
                assert match, f"lua/{path}.lua: cannot read the field in {entry!r}"
                fields[match[1]] = {*match[3].split(", ")}
            found[name] = ((name, other) if other else (name,), fields)
    return found


def settings() -> Iterator[tuple[str, str, str]]:
    """Yield which table gets which field in which file, after it was made."""
    for path, text in TEXTS.items():
        for targets, function in _TARGETS.findall(_GUARD.sub("", text)):
            for target in [*targets.split(", "), function]:
                if match := re.fullmatch(r"(\w+)\.(\w+)", target.strip()):
                    yield match[1], match[2], name_of(path)


@pytest.mark.parametrize("table", ["gate", "lane_state", "opened_runs", "run"])
def test_each_field_is_declared_with_the_files_that_set_it(table: str) -> None:
    names, fields = declared()[table]
    made = re.compile(rf"^ *(?:local )?{table} = {{", re.MULTILINE)
    made_in = {name_of(path) for path, text in TEXTS.items() if made.search(text)}
    found = defaultdict[str, set[str]](set)
    for name, field, file in settings():
        if name in names:
            found[field].add(file)
    assert {*found} - {*fields} == set()
    assert {field: found[field] - made_in for field in fields} == {
        field: files - made_in for field, files in fields.items()
    }


def test_each_table_that_several_files_add_fields_to_is_declared() -> None:
    known = {name for names, _ in declared().values() for name in names}
    files = defaultdict[str, set[str]](set)
    for name, _, file in settings():
        files[name].add(file)
    assert {name for name, its in files.items() if len(its) > 1} - known == NOT_SHARED
