"""The short form of `make soak`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests import servers
from tests.history.events import Event
from tests.soak.__main__ import report
from tests.soak.nodes import Undone, as_kept
from tests.soak.run import Setting, soak

if TYPE_CHECKING:
    from pathlib import Path

    from tests.history.events import Kind


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["plain", "controlled", "sharded"])
async def test_a_short_soak_finds_no_violation(kind: str, tmp_path: Path) -> None:
    seed = os.environ.get("SEED", "short")
    setting = Setting(servers.wanted(), kind, workers=4, round=10)
    verdict = await soak(20, seed, tmp_path, setting)  # a round of each sort
    message = "\n".join([f"seed {seed}, logs in {tmp_path}", *report(verdict)])
    assert not verdict.wrong, message
    assert not verdict.violations, message
    assert verdict.events["complete True"], message


def test_a_fail_over_may_have_undone_what_was_not_replicated_since_the_replica_had_all() -> None:
    undone = Undone(frozenset({"q"}), since=10, until=20)

    def call(kind: Kind, at: int, queue: str = "q") -> Event:
        return Event(at + 1, kind, queue, "x", "worker", 7, called_at=at, outcome=True)

    for kept in (call("renew", 8), call("renew", 21), call("renew", 12, "other"), call("complete", 12)):
        assert [*as_kept([kept], [undone])] == [kept]
    assert [one.outcome for one in as_kept([call("renew", 9), call("die", 20)], [undone])] == ["unknown"] * 2
    lease, begin = Event(15, "lease", "q", "x", "worker", 7, 1, 14), Event(30, "begin", "q", "x", "worker", 7)
    assert not [*as_kept([lease, begin], [undone])]
    assert [*as_kept([lease._replace(called_at=21, at=22), begin], [undone])][1:] == [begin]
