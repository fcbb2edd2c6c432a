"""Write flow runs into hashes, in any state, for tests of what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue


def chain(queue: str, *names: str, flow: str = "access", **attributes: bytes) -> FlowPlan:
    """Return a plan of stages, each after the one before."""
    stages = tuple(
        StagePlan(name, queue, name.encode(), after=names[max(0, at - 1) : at])
        for at, name in enumerate(names)
    )
    lookup = {
        name: [one.strip(' "') for one in value.decode().strip("[]").split(",")]
        for name, value in attributes.items()
    }
    return FlowPlan(stages, names[-1], attributes, flow, lookup, keep_ms=600_000)


def children(queue: str, count: int) -> tuple[ChildPlan, ...]:
    """Return children on a queue."""
    return tuple(ChildPlan(queue, b"child %d" % at) for at in range(count))


async def write_run(
    redis: Redis,
    queue: AsyncWorkQueue,
    run_id: str,
    plan: FlowPlan,
    fields: Mapping[str, str],
    *,
    state: str = "active",
    active: int = 1,
    at: int = 1_900_000_000_000,
) -> None:
    """Write the hash of a run; `fsck` puts it into the sets."""
    values = {name.decode(): value.decode() for name, value in plan.fields()}
    values |= {"state": state, "created": str(at), "active": str(active), **fields}
    if state != "active":
        values["ended"] = str(at + 5_000)
    row = [text for pair in values.items() for text in pair]
    key = f"{queue.shard_of(run_id).name}:run:{run_id}"
    await redis.execute_command("HSET", key, *row)  # type: ignore[no-untyped-call]  # theirs has no types
    if state != "active" and not active:
        await redis.pexpire(key, plan.keep_ms)
