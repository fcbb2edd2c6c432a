"""A foreign client, in its own process, works on a stage of a flow while the flow's worker runs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from leasequeue import TaskQueue
from leasequeue.flow import Flow
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from tests.interop.conftest import StartForeign
    from tests.interop.foreign import Library


@pytest.mark.slow
@pytest.mark.seed("GLD-O23", "GLD-B18")
async def test_a_flow_goes_on_after_a_foreign_client_was_killed_and_another_has_completed(
    redis_url: str, name: str, start: StartForeign, library: Library
) -> None:
    async with TaskQueue.from_url(redis_url, f"{name}-home") as tasks:

        @tasks.task
        async def end(user_id: int, render: None) -> list[int | None]:
            return [user_id, render]

        flow = Flow("access", tasks, attributes={"user_id": int})
        flow.stage(end, after=flow.stage("render", queue=name, takes={"user": "user_id"}, foreign=True))
        run = await flow.start(user_id=3)
        async with working(new_worker(flow, clean_every=0.1)):
            first, second = await asyncio.gather(start(library), start(library))
            held = await first.lease(1, timeout=120)
            assert held is not None
            await first.kill()
            again = await second.lease(30, timeout=120)  # after a light clean of the flow's worker
            assert again is not None
            assert again.id == held.id
            assert json.loads(again.data)["user"] == 3
            assert await second.complete(again.id)
            assert await run.result(timeout=120) == [3, None]
