"""An outcome that is not declared is an error of the run, and no lease is renewed because of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import pytest

from leasequeue.worker import RetryPolicy, Signal
from leasequeue.worker.acknowledger import Acknowledger, Backlog
from leasequeue.worker.lease_renewer import LeaseRenewer
from leasequeue.worker.outcomes import DONE, Outcome, Release, by_exception
from leasequeue.worker.run import ActiveRun
from tests.worker.working import add, dead_letter_of, new_worker

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.worker.coordinator import Coordinator


DECLARATIONS = ("counted_as", "is_attempt", "acknowledge", "__str__")


class Park(Signal):
    """A signal whose outcome is not declared."""


@by_exception.register(Park)
def _(error: Park, attempt: int, policy: RetryPolicy) -> object:  # noqa: ARG001 - as in by_exception
    return object()


class Unregistered(Signal):
    """A signal that leads to no outcome at all."""


async def test_a_signal_that_leads_to_no_outcome_is_an_error_of_the_run(queue: AsyncWorkQueue) -> None:
    async def raises(_: bytes) -> None:
        raise Unregistered

    letter = await dead_letter_of(queue, raises, "a", worker=new_worker(concurrency=1))
    assert "TypeError: no outcome is registered for the signal Unregistered" in letter.error


def test_two_outcomes_that_are_counted_alike_are_refused() -> None:
    with pytest.raises(TypeError, match="Release and Twice are both counted as 'released'"):
        type("Twice", (Outcome,), {name: vars(Release)[name] for name in DECLARATIONS})
    assert Outcome.declared["released"] is Release


@pytest.mark.parametrize("batch", [None, 2])
async def test_a_signal_without_a_declared_outcome_is_an_error_of_the_run(
    queue: AsyncWorkQueue, caplog: pytest.LogCaptureFixture, batch: int | None
) -> None:
    async def raises(payload: str) -> None:
        if payload == "park":
            raise Park

    async def answers(payloads: list[str]) -> list[Park | None]:
        return [Park() if payload == "park" else None for payload in payloads]

    handle, worker = answers if batch else raises, new_worker(concurrency=1)
    letter = await dead_letter_of(queue, handle, "park", "good", worker=worker, batch=batch)
    assert "TypeError: Park leads to <object object" in letter.error
    assert re.search("the outcome of <run of .*> cannot be decided", caplog.text)


async def test_an_outcome_that_is_not_declared_is_not_acknowledged_and_its_lease_is_not_renewed(
    queue: AsyncWorkQueue,
) -> None:
    """The other outcomes of the run are acknowledged."""
    worker = new_worker()
    worker.handler(queue, batch=2)(lambda _: None)
    handler = worker.handlers[0]
    coordinator = cast("Coordinator", None)
    renewer = LeaseRenewer(coordinator)
    acknowledger = Acknowledger(handler, renewer, None, Backlog())
    await add(queue, "a", "park")
    run = ActiveRun(handler, await queue.lease_many(2, 30))
    renewer.add([run])
    run.outcomes = cast("list[Outcome]", [DONE, object()])
    with pytest.raises(TypeError, match="no subclass of Outcome: <object object"):
        acknowledger.add(run)
    await acknowledger.drain()
    assert not renewer.held
    assert (acknowledger.counts, acknowledger.rejected) == ({"completed": 1}, 1)
    assert [view.id for view in await queue.inspect("leased")] == ["2"]
