"""The stages of flow runs, as the scripts see them: rows, and the calls that carry them.

A flow run is started, finished stage by stage, and settled by scripts alone. What takes several trips, such
as adding 10,000 children, may be stopped after any of them and made again.
"""

from __future__ import annotations

import asyncio
import functools
import random
import secrets
from typing import TYPE_CHECKING, Literal, NamedTuple

from leasequeue.describing import describe
from leasequeue.errors import InvalidArgument, LeaseLost, ResultMismatch
from leasequeue.keys import check_prefix, hash_tag
from leasequeue.queue.encoding import ROW_BYTES, encoded, error_text, trips
from leasequeue.queue.plan import check_run_id
from leasequeue.queue.runs.settling import AGAIN, answered, cancel_rest, report, settle
from leasequeue.queue.slot import QueueObject, expect_queues, read_key, run_at
from leasequeue.queue.stage_ref import StageRef, run_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.plan import ChildPlan, Plan

__all__ = [
    "StageRef",
    "StageRow",
    "cancel_rest",
    "child_text",
    "fan",
    "fan_all",
    "finish_stages",
    "read_outcome",
    "report",
    "settle",
    "stage_children",
    "start_run",
    "store_outcome",
]

#: How many stages one call finishes: about 3 ms of the server.
STAGE_ROWS = 30
#: The answers to rows: more children are to be added; the row chooses a stage that does not follow.
MORE, NO_SUCCESSOR = 2, -4
#: The answer to a caller that starts a large run: another one has begun to store it anew.
STARTED_ANEW = -1

#: How the work on a stage has ended.
Kind = Literal["done", "fan", "failed", "drop", "stage", "more"]


class StageRow(NamedTuple):
    """How the work on the item of a stage has ended, for `finish_stages`.

    Attributes:
        lease: The lease under which the work was done.
        kind: How it has ended: `drop` if it was not done, as its run needs it no more. Or it has not: `stage`
            stores definitions of children, and `more` adds the next.
        value: Of `done`, the result in JSON; of `failed`, the error; of `fan`, the definitions of its
            children as a JSON list, or, once these are stored, their number; of `stage`, definitions.
        extra: Of `done`, the names of the chosen successors as a JSON list, or nothing; of `fan`, the policy;
            of `stage`, the number of the first child.
        fenced: Whether only the current holder is accepted.
        trace: The `traceparent` of the handler's run, to which what follows is linked; None: there is none.
    """

    lease: Lease
    kind: Kind
    value: bytes = b""
    extra: bytes = b""
    fenced: bool = True
    trace: bytes | None = None

    def encode(self) -> tuple[bytes, ...]:
        """Return the values of the row."""
        *claim, reference = _claim(self.lease, fenced=self.fenced)
        if self.trace is not None:
            reference += b"\0" * (4 - reference.count(b"\0")) + self.trace
        return *claim, reference, self.kind.encode(), self.value, self.extra


def child_text(parent: StageRef, child: ChildPlan) -> bytes:
    """Return the definition of a child, checked.

    Raises:
        InvalidArgument: If its queue is in another slot than the run, or its data is no text.
    """
    _check_place(parent.home, child.queue)
    return child.json()


@functools.lru_cache(1000)  # of many children, most are on the same queue
def _check_place(home: str, queue: str) -> None:
    """Check that a queue is in the slot of a run."""
    check_prefix(queue)
    tag = hash_tag(home)
    if tag is not None and hash_tag(queue) != tag:
        allowed = f"a queue in the slot of {home!r}, such as {'{' + tag + '}' + queue!r}"
        raise InvalidArgument("queue", queue, allowed)


async def start_run(queue: QueueObject, plan: Plan, run_id: str) -> bool:
    """Start a flow run: store its plan, and add the items of its first stages.

    A run starts as a whole or not at all. Repeating a call that was lost is safe.

    Args:
        queue: The queue whose keys hold the run.
        plan: The plan.
        run_id: The id of the run.

    Returns:
        False if there is a run of this id already.

    Raises:
        InvalidArgument: If the id cannot be used. Nothing was sent.
        InvalidFlow: If the plan cannot be carried out. Nothing was sent.
        AccessDenied: If the access rules forbid the queue of one of its stages. Nothing was stored.
        QueueClosed, ServerError: As in `AsyncWorkQueue.add_item`.
    """
    fields = plan.fields()
    await expect_queues(queue, plan.queues, "where a stage of the flow run has its item")
    steps = [*trips([len(name) + len(value) for name, value in fields])]
    answer = STARTED_ANEW
    while answer == STARTED_ANEW:
        builder = secrets.token_hex(8).encode()
        for start, stop in steps:
            answer = await run_at(
                queue,
                queue.name,
                "run_start",
                [part for field in fields[start:stop] for part in field],
                of_run=check_run_id(run_id).encode(),
                builder=builder,
                is_first=int(start == 0),
                seal=int(stop == len(fields)),
            )
            if answer != 1:
                break
        if answer == STARTED_ANEW:  # another caller stores a run of this id
            await asyncio.sleep(random.uniform(0, 0.1))  # noqa: S311 - no secret
    return answer == 1


async def finish_stages(queue: QueueObject, rows: Sequence[StageRow]) -> list[bool]:
    """Record how the work on stages has ended, add what follows, and complete their items.

    What is left of joins that need no more is cancelled soon.

    Returns:
        For each row whether this call has finished the item.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.complete`. Repeating the call is safe.
    """
    accepted: dict[int, bool] = {}
    fans: list[int] = []
    todo = [*range(len(rows))]
    while todo:
        left: list[int] = []
        sizes = [len(rows[i].value) + len(rows[i].extra) + ROW_BYTES for i in todo]
        for start, stop in trips(sizes, maximum=STAGE_ROWS):
            some = todo[start:stop]
            answers = await _send(queue, [rows[i] for i in some])
            for i, answer in zip(some, answers, strict=True):
                accepted[i] = answer == 1
                if answer == AGAIN:
                    left.append(i)
                elif answer == MORE:
                    fans.append(i)
                elif answer == NO_SUCCESSOR:
                    rows = [*rows[:i], _mismatched(rows[i]), *rows[i + 1 :]]
                    left.append(i)
        todo = left
    fanned = await asyncio.gather(*(fan(queue, rows[i].lease) for i in fans))
    accepted.update(zip(fans, fanned, strict=True))
    return [accepted[i] for i in range(len(rows))]


def _mismatched(row: StageRow) -> StageRow:
    """Return the row that fails a stage which chooses what does not follow it."""
    path = _ref(row.lease).path
    error = ResultMismatch(path, f"it chooses {row.extra.decode()}, and not all of these follow it")
    return row._replace(kind="failed", value=error_text(describe(error)), extra=b"")


async def fan_all(
    queue: QueueObject, fans: Sequence[tuple[Lease, Sequence[bytes] | None, bytes, bytes | None]]
) -> list[bool]:
    """Add the children of stages, and complete their items.

    Args:
        queue: The queue of the items.
        fans: For each stage its lease, the definitions of its children (None: the server has them already),
            the policy by which they are joined, and the trace of a `StageRow`.

    Returns:
        For each whether this call has completed the item.

    Raises:
        QueueClosed, ServerError: As in `finish_stages`.
    """

    async def one(lease: Lease, children: Sequence[bytes] | None, policy: bytes, trace: bytes | None) -> bool:
        if children is None:
            return await fan(queue, lease)
        if next(trips([len(child) for child in children]), None) == (0, len(children)):  # one call
            value = b"[" + b",".join(children) + b"]"
        elif await stage_children(queue, lease, children):
            value = b"%d" % len(children)
        else:
            return False
        return (await finish_stages(queue, [StageRow(lease, "fan", value, policy, trace=trace)]))[0]

    return [*await asyncio.gather(*(one(*each) for each in fans))]


async def stage_children(queue: QueueObject, lease: Lease, children: Sequence[bytes]) -> bool:
    """Store the children of a stage, before `finish_stages` adds them: those that do not fit into one call.

    Args:
        queue: The queue of the stage's item.
        lease: Its lease.
        children: Their definitions, as `child_text` returns them.

    Returns:
        False if the lease was lost.

    Raises:
        QueueClosed, ServerError: As in `finish_stages`.
    """
    for start, stop in trips([len(child) for child in children]):
        value = b"[" + b",".join(children[start:stop]) + b"]"
        if (await _send(queue, [StageRow(lease, "stage", value, b"%d" % start)]))[0] != MORE:
            return False
    return True


async def fan(queue: QueueObject, lease: Lease) -> bool:
    """Add the children of a stage that are not added yet, and then complete its item.

    Returns:
        Whether this call has completed the item.

    Raises:
        QueueClosed, ServerError: As in `finish_stages`.
    """
    answer = MORE
    while answer in (MORE, AGAIN):
        answer = (await _send(queue, [StageRow(lease, "more")]))[0]
    return answer == 1


async def read_outcome(lease: Lease, queue: QueueObject, key: bytes) -> bytes | None:
    """Return the stored outcome of a step of a stage; None: there is none.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    ref = _ref(lease)
    field = b"o:%b\0%b" % (ref.path.encode(errors="surrogateescape"), key)
    outcome: bytes | None = await read_key(queue, b"HGET", run_key(ref.home, ref.run), field)
    return outcome


async def store_outcome(lease: Lease, queue: QueueObject, key: bytes, outcome: bytes) -> bytes:
    """Store the outcome of a step of a stage, and return it; if there was one already, return that.

    Raises:
        LeaseLost: If the lease is not the current one, or the run does not exist any more.
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    item, token, _, reference = _claim(lease)
    accepted, stored = await run_at(
        queue,
        queue.name,
        "run_once",
        item=item,
        lease=token,
        of_stage=reference,
        step=key,
        outcome=outcome,
    )
    if not accepted:
        raise LeaseLost(lease.id, lease.token)
    return bytes(stored)


async def _send(queue: QueueObject, rows: Sequence[StageRow]) -> list[int]:
    """Send rows of `run_finish`, and return the answers."""
    values = [value for row in rows for value in row.encode()]
    return answered(queue, await run_at(queue, queue.name, "run_finish", values))


def _claim(lease: Lease, *, fenced: bool = False) -> tuple[bytes, ...]:
    return encoded(lease), b"%d" % lease.token, b"1" if fenced else b"0", _ref(lease).encode()


def _ref(lease: Lease) -> StageRef:
    if lease.stage is None:
        raise InvalidArgument("lease", lease, "the lease of a stage of a flow run")
    return lease.stage
