"""A sample of `make test-failover`, and in `make test-long` all of it."""

from __future__ import annotations

import pytest

from tests.failover.__main__ import run_row
from tests.failover.faults import ROWS, Row

#: What is run always: each kind of servers once, in a minute.
SAMPLE = ("sentinel: SIGKILL", "cluster: seed gone", "one server: new address")
#: How much later than redis-py's own client a part may be served here (s): this is no measurement.
LATE_SECONDS = 30.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=() if row.name in SAMPLE else pytest.mark.long) for row in ROWS],
)
async def test_all_parts_continue_by_themselves_when_servers_go_away(row: Row) -> None:
    verdict = await run_row(row)
    print(verdict)  # noqa: T201 - shown with -s
    assert not verdict.problems
    assert verdict.behind < LATE_SECONDS, verdict.parts
