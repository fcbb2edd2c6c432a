"""An error in a script names the script, and the file and line of `lua/` where it is."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import ScriptFailed, WrongKeyType
from leasequeue.wire import runner, scripts
from lua.compose.composer import compose
from lua.compose.linker import name_of, strip
from lua.compose.writer import Sources, line_map
from tests.plans.run_hashes import chain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    PutIn = Callable[[str, str, str], str]

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
#: What no name is put in place of.
LASTING = re.compile(r"'[^']*'|\b(?:and|else|elseif|end|for|function|if|in|local|not|or|return|then|while)\b")


@cache
def lasting(line: str) -> list[str]:
    """Return the parts of a line of a file that are in each script that has it."""
    return LASTING.findall(strip(line))


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> PutIn:
    """Return a function that puts a statement behind a line of a file, and returns where it is."""

    def put(path: str, line: str, statement: str) -> str:
        texts = Sources.read().texts
        lines = texts[path].split("\n")
        lines.insert(lines.index(line) + 1, statement)
        sources = Sources({**texts, path: "\n".join(lines)})
        faulty = {
            name_of(path): compose(path, sources.scripts, sources.library)
            for path in ("items/add_items", "runs/run_start")
        }
        known = json.loads(json.dumps(line_map(faulty)))
        monkeypatch.setattr(runner, "find_script", {**scripts.load(), **faulty}.__getitem__)
        monkeypatch.setattr(scripts, "_line_map", lambda: known)
        return f"lua/{path}.lua:{lines.index(statement) + 1}"

    return put


async def test_a_key_of_another_type(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x"))
    await redis.set(f"{queue.name}:processing", "a string")
    with pytest.raises(WrongKeyType) as caught:
        await queue.lease(30, block=False)
    assert "WRONGTYPE" in str(caught.value)
    assert "lease_many" in str(caught.value)
    assert "user_script" not in str(caught.value)
    [place] = [word for word in str(caught.value).split() if word.startswith("lua/")]
    file, line = place.rstrip(":,").rsplit(":", 1)
    assert "redis.call(" in (ROOT / file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("statement", "behind", "script"),
    [
        ("error('a fault')", ("items/add_items", "flush()"), "add_items"),
        ("local _ = (nil)[1]", ("items/lib/add", "local function add_rows(before, unawaited)"), "add_items"),
        (
            "redis.call('HGET', 'x')",
            ("items/lib/add", "local function add_rows(before, unawaited)"),
            "run_start",
        ),
        ("error('a fault')", ("items/add_items", "flush()"), "run_start"),
    ],
)
async def test_a_fault_in_a_script_or_in_one_that_it_calls(
    queue: AsyncWorkQueue, put_in: PutIn, statement: str, behind: tuple[str, str], script: str
) -> None:
    place = put_in(*behind, statement)
    called: dict[str, Callable[[], Awaitable[object]]] = {
        "add_items": lambda: queue.add_item(Item(b"x")),
        "run_start": lambda: queue.flow_runs.start(chain(queue.name, "a", "b"), "r"),
    }
    with pytest.raises(ScriptFailed) as caught:
        await called[script]()
    assert place in str(caught.value)
    assert script in str(caught.value)
    assert "user_script" not in str(caught.value)


def test_each_line_of_a_script_has_what_its_origin_has() -> None:
    texts = {f"lua/{path}.lua": text.split("\n") for path, text in Sources.read().texts.items()}
    for script in scripts.load().values():
        lines = script.body.decode().split("\n")
        places = [scripts.origin_of(script, number) for number in range(1, len(lines) + 1)]
        assert scripts.origin_of(script, len(lines) + 1) is None
        composed: defaultdict[str, str] = defaultdict(
            str
        )  # a function may be put into a statement of one line
        for place, line in zip(places, lines, strict=True):
            assert place, script.name
            composed[place] += line + "\n"
        for place, found in composed.items():
            file, _, at = place.partition(":")
            for part in lasting(texts[file][int(at) - 1]):
                assert part in found, f"{script.name}: {place}: {found}"


def test_the_text_of_a_script_of_others_keeps_its_lines() -> None:
    other = replace(scripts.find_script("counts"), sha=b"0" * 40)
    assert scripts.with_origins("ERR user_script:3: a fault", other) == "ERR user_script:3: a fault"
