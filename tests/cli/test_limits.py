"""`leasequeue limits`, `leasequeue pause` and `leasequeue resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.queue.limits import Limit
from tests.cli.program import usage_error

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue


async def test_limits_are_set_shown_and_removed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("limits", queue.name)
    assert (outcome.code, outcome.out) == (0, "")
    assert "has no limits" in outcome.error
    assert (
        await leasequeue("limits", queue.name, "--rate", "10/s", "--burst", "5", "--ageing", "1m")
    ).code == 0
    assert (await leasequeue("limits", queue.name, "--group", "*", "--concurrency", "2")).code == 0
    outcome = await leasequeue("limits", queue.name, "--group", "g", "--rate", "1/m", "--json")
    assert [(row["of"], row["group"], row["rate"], row["concurrency"]) for row in outcome.documents] == [
        ("queue", None, "10/s", None),
        ("each group", "*", None, 2),
        ("group", "g", "1/m", None),
    ]
    outcome = await leasequeue("limits", queue.name, "--group", "g")
    assert (len(outcome.out.splitlines()), outcome.err) == (2, "")
    assert (await leasequeue("limits", queue.name, "--remove", "rate")).code == 0
    assert (await leasequeue("limits", queue.name, "--remove", "rate")).code == 1
    assert (await leasequeue("limits", queue.name, "--remove", "all", "--group", "g")).code == 0
    found = await queue.limits.get()
    assert (found.queue, found.each_group, found.groups) == (Limit(), Limit(concurrency=2), {})
    assert "expected a rate such as" in usage_error(await leasequeue("limits", queue.name, "--rate", "0/s"))
    wrong = await leasequeue("limits", queue.name, "--rate", "1/s", "--remove", "all")
    assert "cannot be combined" in usage_error(wrong)


async def test_a_queue_and_a_group_are_paused_and_resumed(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    assert (await leasequeue("resume", queue.name)).code == 1
    assert (await leasequeue("pause", queue.name, "--reason", "the mail server is down")).code == 0
    outcome = await leasequeue("pause", queue.name, "--group", "g", "--for", "1h", "--json")
    assert (outcome.code, outcome.document["group"], outcome.document["reason"]) == (0, "g", "")
    outcome = await leasequeue("limits", queue.name)
    assert "the mail server is down" in outcome.out
    assert len(outcome.out.splitlines()) == 3
    assert (await leasequeue("resume", queue.name)).code == 0
    outcome = await leasequeue("resume", queue.name, "--group", "g", "--json")
    assert (outcome.code, outcome.document["resumed"]) == (0, True)
    outcome = await leasequeue("resume", queue.name, "--group", "g")
    assert (outcome.code, "'g'" in outcome.error) == (1, True)
    past = await leasequeue("pause", queue.name, "--until", "2020-01-01T00:00Z")
    assert "2020-01-01T00:00:00+00:00, expected a time in the future" in usage_error(past)
