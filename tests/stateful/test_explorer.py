"""All interleavings of a few clients on two items, within a bound: no rule of the protocol is ever broken."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.stateful.explorer.engine import Fault, Result, search, texts_with
from tests.stateful.explorer.queue import EVERYTHING, Bound

if TYPE_CHECKING:
    from tests.conftest import MakeServer

pytestmark = [pytest.mark.core, pytest.mark.timeout(1800)]

#: Lowered limits: with them, two ids are enough for what is otherwise done in long lists only.
LONG_LISTS = (
    Fault("leases/lib/processing.lua", "> 128", "> 0", 3),
    Fault("leases/lib/processing.lua", "<= 128", "<= 0"),
    Fault("leases/lib/processing.lua", "-3 * #ids - 8", "-#ids"),
)
WITH_FOREIGN = frozenset({"add", "clean", "foreign"})


def one_item(*groups: str, depth: int, item_id: str = "a") -> Bound:
    """Return a bound with one item and one session."""
    return Bound(ids=(item_id,), sessions=(1,), groups=frozenset(groups), depth=depth)


SMALL = {
    "everything": Bound(depth=4),
    "ours alone": Bound(groups=EVERYTHING - {"foreign"}, depth=5),
    "another client": one_item("add", "clean", "foreign", depth=7),
    "long lists": Bound(groups=WITH_FOREIGN, faults=LONG_LISTS, depth=5),
    "delays": one_item("add", "delay", "clean", "foreign", depth=6),
    "cancelling": one_item("add", "cancel", "return", "clean", "foreign", depth=6),
    "waiting": Bound(groups=frozenset({"add", "wait", "clean"}), depth=7),
    "the empty id": one_item("clean", "foreign", item_id="", depth=6),
}
SLOW = {"everything", "ours alone", "long lists"}
LARGE = {
    "everything": Bound(states=100_000, groups=EVERYTHING - {"twice"}),
    "ours alone": Bound(states=20_000, groups=EVERYTHING - {"foreign"}),
    "long lists": Bound(states=20_000, groups=EVERYTHING - {"wait", "twice"}, faults=LONG_LISTS),
    "two foreign clients": Bound(states=20_000, foreign=2, groups=WITH_FOREIGN | {"delay"}),
    "the empty id": Bound(states=10_000, ids=("", "a"), groups=WITH_FOREIGN | {"return", "dead"}),
}

#: Faults that were in the code once, each with a bound within which it is found, and the violation.
FAULTS = {
    "the lease of the empty id is removed": (
        "when only items",
        one_item("foreign", "clean", item_id="", depth=8),
        Fault(
            "lib/begin_writes.lua",
            "redis.call('UNLINK', none)",
            "redis.call('ZREM', string.gsub(none, 'none$', 'deadlines'), '')",
        ),
    ),
    "a foreign lease on a due item is ignored": (
        "the lease key of a foreign client",
        one_item("add", "delay", "foreign", depth=7),
        Fault("leases/lib/reclaim.lua", "if left then", "if left and key == deadlines then"),
    ),
    "two processes share a session": (
        "an inbox of a session that is not registered",
        Bound(ids=("a",), sessions=(2,), groups=frozenset({"add", "wait"}), depth=6),
    ),
}
MORE_FAULTS = {
    "leases are counted in a list that foreign clients change": (
        "counts()",
        one_item("foreign", depth=6),
        Fault(
            "reading/counts.lua",
            "redis.call('ZCARD', deadlines)",
            "redis.call('LLEN', prefix .. ':processing') + 0 * redis.call('ZCARD', deadlines)",
        ),
    ),
    "a note of an entry is taken for the entry": (
        "is not written down",
        Bound(groups=WITH_FOREIGN, depth=8),
        *LONG_LISTS,
        Fault(
            "leases/lib/processing.lua",
            "  if at_first.notes then in_chunks('ZREM', gone, ids) end\n"
            "  in_chunks('LPUSH', processing, ids)\n",
            "  if at_first.notes then\n"
            "    for _, id in ipairs(ids) do\n"
            "      if redis.call('ZREM', gone, id) == 0 then\n"
            "        redis.call('LPUSH', processing, id)\n"
            "      end\n"
            "    end\n"
            "  else\n"
            "    in_chunks('LPUSH', processing, ids)\n"
            "  end\n",
        ),
    ),
    "a holder of an earlier incarnation completes": (
        "a holder of an earlier incarnation",
        one_item("add", depth=8),
        Fault("leases/lib/current.lua", "first and token >= first and token <= last", "first"),
    ),
    "doubles are leased": (
        "while another holder has one",
        one_item("add", "foreign", depth=6),
        Fault("leases/lib/lease.lua", "or is_ours(score))", ")"),
    ),
    "the inboxes of dead processes are forgotten": (
        "cannot be leased any more",
        one_item("add", "wait", depth=6),
        Fault("leases/lib/reclaim.lua", "empty_inbox(prefix .. ':inbox:' .. absent, limit - moved)", "0"),
    ),
}


async def explore(make_server: MakeServer, bound: Bound, servers: int = 1) -> Result:
    """Search; return what was found."""
    urls = [(await make_server()).url for _ in range(servers)]
    return await asyncio.to_thread(search, urls, bound)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in SMALL]
)
@pytest.mark.seed("RWQ-G2", "RWQ-G3", "RWQ-G6", "RWQ-B5", "RWQ-B6", "RWQ-B8")
async def test_no_short_path_breaks_a_rule(make_server: MakeServer, name: str) -> None:
    result = await explore(make_server, SMALL[name])
    assert not result.what, result
    assert result.states > 50


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
async def test_no_path_breaks_a_rule(make_server: MakeServer, name: str) -> None:
    result = await explore(make_server, LARGE[name], servers=2)
    assert not result.what, result
    assert result.states > LARGE[name].states


def test_the_text_of_each_fault_is_in_its_file() -> None:
    """Also those of the long tests, which run seldom."""
    for one in (*FAULTS.values(), *MORE_FAULTS.values()):
        assert texts_with(part for part in one if isinstance(part, Fault))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "bound", "faults"),
    [
        *(pytest.param(one[0], one[1], one[2:], id=name) for name, one in FAULTS.items()),
        *(
            pytest.param(one[0], one[1], one[2:], id=name, marks=pytest.mark.long)
            for name, one in MORE_FAULTS.items()
        ),
    ],
)
async def test_a_fault_is_found(
    make_server: MakeServer, what: str, bound: Bound, faults: tuple[Fault, ...]
) -> None:
    result = await explore(make_server, replace(bound, faults=faults))
    assert what in result.what, result
