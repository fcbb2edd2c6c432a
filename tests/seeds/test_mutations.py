"""Each bug is put back into the source, and its test has to fail: it would notice.

A mutation is one exact replacement in one file. For Lua, the scripts are composed from a copy of `lua/`.
For Python, the functions of the living module run the code of a mutated copy.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

import pytest

import leasehold
from leasehold.scripting import catalogue
from tests.seeds import test_rwq_bugs as bugs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from redis.asyncio import Redis

SOURCE = Path(leasehold.__file__).parent


class Mutation(NamedTuple):
    """A bug: in this file, this text becomes that; this test has to notice."""

    row: str
    file: str
    old: str
    new: str
    test: Callable[..., Awaitable[None]]


MUTATIONS = [
    Mutation(
        "B1: a cleaner asks for the lease key where it means the data",
        "light_clean.lua",
        "redis.call('EXISTS', data_key(id)) == 0",
        "redis.call('EXISTS', prefix .. ':lease:' .. id) == 0",
        bugs.test_rwq_b01_a_light_clean_returns_an_abandoned_item,
    ),
    Mutation(
        "B2: the data are written before it is known that the id can be pushed",
        "lib/check.lua",
        "redis.call('LLEN', queue)\n",
        "",
        bugs.test_rwq_b02_an_add_that_is_cut_short_leaves_nothing_behind,
    ),
    Mutation(
        "B3: complete does not ask which incarnation a lease is of",
        "lib/complete.lua",
        "first and token >= first and token <= last",
        "first",
        bugs.test_rwq_b03_stale_worker_cannot_complete_a_new_incarnation,
    ),
    Mutation(
        "B4: an item is leased without looking whether its data are still there",
        "lib/lease.lua",
        "redis.pcall(look, data_key(id))",
        "(redis.pcall(look, data_key(id)) or '')",
        bugs.test_rwq_b04_a_completed_item_is_not_handed_out_again,
    ),
    Mutation(
        "B5: an entry without a lease is taken as abandoned at once",
        "light_clean.lua",
        "or grace_ms",
        "or grace_ms * 0",
        bugs.test_rwq_b05_a_cleaner_leaves_alone_what_is_just_being_leased,
    ),
    Mutation(
        "B6: a cleaner puts back without taking away",
        "lib/reclaim.lua",
        "  leave_leased(ids)\n",
        "",
        bugs.test_rwq_b06_any_number_of_cleaners_puts_an_item_back_once,
    ),
    Mutation(
        "B7: an orphan is put back without looking again whether it is there",
        "deep_clean_restore.lua",
        "    or redis.call('EXISTS', data_key(id)) == 0\n",
        "",
        bugs.test_rwq_b07_a_cleaner_does_not_push_what_was_completed_meanwhile,
    ),
    Mutation(
        "B8: complete looks only at what is under lease",
        "lib/complete.lua",
        "      else\n        leave_waiting(id)",
        "",
        bugs.test_rwq_b08_complete_takes_an_item_out_of_the_queue_too,
    ),
    Mutation(
        "B9: the first ghost ends the search",
        "lease_many.lua",
        "and checked < 2000 do",
        "and checked < 1 do",
        bugs.test_rwq_b09_a_ghost_is_not_answered_as_empty,
    ),
    Mutation(
        "B10: a expired item is taken away before it is known that it can be put back",
        "lib/check.lua",
        "redis.call('LLEN', queue)\n",
        "",
        bugs.test_rwq_b10_a_clean_that_is_cut_short_loses_nothing,
    ),
    Mutation(
        "B11: the error of a read is never looked at",
        "queue/cleaning.py",
        "await _drop_waiting(engine, suspects)",
        "await __import__('asyncio').gather(_drop_waiting(engine, suspects), return_exceptions=True)",
        bugs.test_rwq_b11_a_deep_clean_that_cannot_read_the_queue_puts_nothing_back,
    ),
    Mutation(
        "B12: glob characters of the name are not escaped",
        "keys.py",
        r're.sub(rb"([\\*?\[\]])", rb"\\\1", self.prefix)',
        "self.prefix",
        bugs.test_rwq_b12_a_deep_clean_keeps_to_its_own_queue_whatever_its_name,
    ),
    Mutation(
        "B13: durations are whole seconds",
        "durations.py",
        "math.ceil(seconds(argument, value, zero=zero, longest=longest) * 1000)",
        "math.ceil(seconds(argument, value, zero=zero, longest=longest)) * 1000",
        bugs.test_rwq_b13_times_below_a_second_are_what_they_say,
    ),
    Mutation(
        "B16: the two lengths are read one after the other",
        "queue/queue.py",
        'return Counts(*await self._engine().run("counts"))',
        'first, then = await self._engine().run("counts"), await self._engine().run("counts")\n'
        "        return Counts(first[0], then[1], then[2], then[3])",
        bugs.test_rwq_b16_counts_are_of_one_instant,
    ),
]


@pytest.fixture
def broken(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Mutation]:
    """Break the library for the length of a test."""
    mutation: Mutation = request.param
    place = Path(str(catalogue.folder())) if mutation.file.endswith(".lua") else SOURCE
    text = (place / mutation.file).read_text()
    assert text.count(mutation.old) == 1, "the mutation has to say exactly what it breaks"
    mutated = text.replace(mutation.old, mutation.new)
    if mutation.file.endswith(".lua"):
        copy = shutil.copytree(place, tmp_path / "lua")
        (copy / mutation.file).write_text(mutated)
        monkeypatch.setattr(catalogue, "folder", lambda: copy)
        catalogue.load.cache_clear()
    else:
        _transplant(mutation.file, mutated, monkeypatch, tmp_path)
    yield mutation
    monkeypatch.undo()
    catalogue.load.cache_clear()


@pytest.mark.parametrize("broken", MUTATIONS, indirect=True, ids=lambda mutation: mutation.row.split(":")[0])
async def test_a_bug_that_is_put_back_is_noticed(
    broken: Mutation, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"monkeypatch": monkeypatch} if "monkeypatch" in broken.test.__annotations__ else {}
    with pytest.raises(AssertionError):
        await broken.test(redis, name, **more)


def test_every_bug_that_has_a_test_is_put_back() -> None:
    tests = {test for test_name, test in vars(bugs).items() if test_name.startswith("test_rwq_")}
    assert {mutation.test for mutation in MUTATIONS} == tests


def _transplant(file: str, mutated: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the functions of a living module run the code that they have in a mutated copy of it."""
    living = sys.modules[f"leasehold.{file.removesuffix('.py').replace('/', '.')}"]
    (tmp_path / "mutant.py").write_text(mutated)
    spec = importlib.util.spec_from_file_location("mutant", tmp_path / "mutant.py")
    assert spec
    assert spec.loader
    mutant = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutant", mutant)
    spec.loader.exec_module(mutant)
    codes = {path: function.__code__ for path, function in _functions(mutant)}
    for path, function in _functions(living):
        monkeypatch.setattr(function, "__code__", codes[path])


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """All functions of a module and of its classes, by their path."""
    for value in vars(module).values():
        for found in vars(value).values() if isinstance(value, type) else [value]:
            function = getattr(found, "fget", None) or getattr(found, "__func__", found)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function.__qualname__, function
