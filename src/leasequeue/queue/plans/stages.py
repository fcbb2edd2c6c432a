"""The stages of flow runs, as the scripts see them: rows, and the calls that carry them.

A flow run is started, finished stage by stage, and settled by scripts alone. What takes several trips, such
as adding 10,000 children, may be stopped after any of them and made again. Each call raises QueueClosed and
ServerError as those of `AsyncWorkQueue` do.
"""

from __future__ import annotations

import asyncio
import functools
import random
import secrets
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from leasequeue.errors import FormatTooNew, InvalidArgument, LeaseLost, QueueNotDeclared, ResultMismatch
from leasequeue.errors.describing import describe
from leasequeue.errors.log import Log
from leasequeue.item.codec import read_stored
from leasequeue.keys import check_prefix, escaped
from leasequeue.queue.encoding import ROW_BYTES, SLOW_ROWS, TRIP_BYTES, encoded, error_text, trips
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.plan import (
    as_bytes,
    check_run_id,
    definition_field,
    missing_tag,
    names_in,
    queue_in,
    run_key,
    sub_run_id,
)
from leasequeue.wire.server_errors import too_new_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.lease import Lease
    from leasequeue.queue.plans.plan import ChildPlan, FlowPlan

#: How many stages one call finishes: about 3 ms of the server.
STAGE_ROWS = 30
#: The answers to rows: more children are to be added; the row chooses a stage that does not follow.
MORE, NO_SUCCESSOR = 2, -4
#: The answer to a caller that starts a large run: another one has begun to store it, too.
STORED_AGAIN = -1
#: The answer to an id or a row that was not handled, as the call had added enough items.
AGAIN = -2
#: How many items one call settles, and about how many fields of a run one step looks at.
MAX_SETTLED, SCANNED = 100, 1000
#: How many items are listed before they are cancelled, and how near an end of a queue an id is found.
MAX_LISTED, NEAR_AN_END = 100_000, 256
#: How often the rest of a run is listed until nothing of it is left.
MAX_PASSES = 5
#: What a part of a child counts as, so that one call stores at most about 1,000 of them.
PART_BYTES = TRIP_BYTES // 1000
#: For how long callers that ask for the result of a cancelled item get JobCancelled, in ms, as a row has it.
KEEP_MS = b"3600000"

log = Log("leasequeue.queue")

#: Whether the item of a row was finished; or why only a newer version can do it.
_Accepted: TypeAlias = "bool | FormatTooNew"
Kind = Literal["done", "fan", "failed", "drop", "stage", "more"]


class FinishRow(NamedTuple):
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
    """Return the definition of a child, checked."""
    if child.parts:

        def checked(part: ChildPlan) -> ChildPlan:
            _check_place(parent.home, part.queue)
            return part

        return child.on(checked).json()
    _check_place(parent.home, child.queue)
    return child.json()


def _child_sizes(children: Sequence[bytes]) -> list[int]:
    """Return the sizes of definitions, for `trips`: one with parts counts as large as its fields need."""
    return [
        len(one) if b'"parts":' not in one else max(len(one), (one.count(b'"data":') + 1) * PART_BYTES)
        for one in children
    ]


@functools.lru_cache(1000)  # of many children, most are on the same queue
def _check_place(home: str, queue: str) -> None:
    check_prefix(queue)
    if (tag := missing_tag(home, queue)) is not None:
        allowed = f"a queue in the slot of {home!r}, such as {'{' + tag + '}' + queue!r}"
        raise InvalidArgument("queue", queue, allowed)


async def start_run(engine: Engine, plan: FlowPlan, run_id: str) -> bool:
    """Start a flow run: store its plan, and add the items of its first stages.

    A run starts as a whole or not at all. Repeating a call that was lost is safe. If the access rules forbid
    the queue of one of its stages, nothing is stored. Return False if there is a run of this id already.
    """
    if engine.payloads.codecs:
        allowed = "a queue without a codec: flow runs keep arguments and results as JSON that scripts read"
        raise InvalidArgument("codec", engine.name, allowed)
    fields = plan.fields()
    await engine.rights.expect_queues(plan.queues, "where a stage of the flow run has its item")
    steps = [*trips([len(name) + len(value) for name, value in fields])]
    answer = STORED_AGAIN
    while answer == STORED_AGAIN:
        builder = secrets.token_hex(8).encode()
        for start, stop in steps:
            answer = await engine.run(
                "run_start",
                [part for field in fields[start:stop] for part in field],
                of_run=check_run_id(run_id).encode(),
                builder=builder,
                is_first=int(start == 0),
                seal=int(stop == len(fields)),
            )
            if answer != 1:
                break
        if answer == STORED_AGAIN:  # another caller stores a run of this id
            await asyncio.sleep(random.uniform(0, 0.1))  # noqa: S311 - no secret
    return answer == 1


async def finish_stages(engine: Engine, rows: Sequence[FinishRow]) -> list[bool]:
    """Record how the work on stages has ended, add what follows, and complete their items.

    What is left of joins that need no more is cancelled soon. Return for each row whether this call has
    finished the item. Raise FormatTooNew, with the answers to the others, if some lead to a queue that this
    version does not know.
    """
    return _told(engine, await _finish(engine, rows))


async def _finish(engine: Engine, rows: Sequence[FinishRow]) -> list[_Accepted]:
    accepted: dict[int, _Accepted] = {}
    fans: list[int] = []
    todo = [*range(len(rows))]
    while todo:
        left: list[int] = []
        sizes = [len(rows[i].value) + len(rows[i].extra) + ROW_BYTES for i in todo]
        for start, stop in trips(sizes, maximum=STAGE_ROWS):
            some = todo[start:stop]
            answers = await _send(engine, [rows[i] for i in some])
            for i, answer in zip(some, answers, strict=True):
                accepted[i] = answer if isinstance(answer, FormatTooNew) else answer == 1
                if answer == AGAIN:
                    left.append(i)
                elif answer == MORE:
                    fans.append(i)
                elif answer == NO_SUCCESSOR:
                    rows = [*rows[:i], _mismatched(rows[i]), *rows[i + 1 :]]
                    left.append(i)
        todo = left
    fanned = await asyncio.gather(*(fan(engine, rows[i].lease) for i in fans))
    accepted.update(zip(fans, fanned, strict=True))
    return [accepted[i] for i in range(len(rows))]


def _told(engine: Engine, accepted: Sequence[_Accepted]) -> list[bool]:
    """Return the answers to rows, or raise an error that is among them, with those to the others."""
    errors = [one for one in accepted if isinstance(one, FormatTooNew)]
    for error in errors:
        engine.feeds.leave(error)
    if errors:
        errors[0].answers = [one if isinstance(one, bool) else None for one in accepted]
        raise errors[0]
    return [one is True for one in accepted]


def _mismatched(row: FinishRow) -> FinishRow:
    """Return the row that fails a stage which chooses what does not follow it."""
    path = _ref(row.lease).path
    error = ResultMismatch(path, f"it chooses {row.extra.decode()}, and not all of these follow it")
    return row._replace(kind="failed", value=error_text(describe(error)), extra=b"")


async def fan_all(
    engine: Engine, fans: Sequence[tuple[Lease, Sequence[bytes] | None, bytes, bytes | None]]
) -> list[bool]:
    """Add the children of stages, and complete their items; return for each whether this call has.

    `fans` has for each stage its lease, the definitions of its children (None: the server has them already),
    the policy by which they are joined, and the trace of a `FinishRow`. Raise FormatTooNew as
    `finish_stages` does.
    """

    async def one(
        lease: Lease, children: Sequence[bytes] | None, policy: bytes, trace: bytes | None
    ) -> _Accepted:
        if children is None:
            return await fan(engine, lease)
        if next(trips(_child_sizes(children)), None) == (0, len(children)):  # one call
            value = b"[" + b",".join(children) + b"]"
        elif (stored := await stage_children(engine, lease, children)) is True:
            value = b"%d" % len(children)
        else:
            return stored
        return (await _finish(engine, [FinishRow(lease, "fan", value, policy, trace=trace)]))[0]

    return _told(engine, await asyncio.gather(*(one(*each) for each in fans)))


async def stage_children(engine: Engine, lease: Lease, children: Sequence[bytes]) -> _Accepted:
    """Store the children of a stage, before `finish_stages` adds them: those that do not fit into one call.

    Return False if the lease was lost.
    """
    for start, stop in trips(_child_sizes(children)):
        value = b"[" + b",".join(children[start:stop]) + b"]"
        answer = (await _send(engine, [FinishRow(lease, "stage", value, b"%d" % start)]))[0]
        if answer != MORE:
            return answer if isinstance(answer, FormatTooNew) else False
    return True


async def fan(engine: Engine, lease: Lease) -> _Accepted:
    """Add what children of a stage are missing, then complete its item; return whether this call has."""
    answer: int | FormatTooNew = MORE
    while answer in (MORE, AGAIN):
        answer = (await _send(engine, [FinishRow(lease, "more")]))[0]
    return answer if isinstance(answer, FormatTooNew) else answer == 1


async def read_outcome(lease: Lease, engine: Engine, key: bytes) -> bytes | None:
    """Return the stored outcome of a step of a stage; None: there is none."""
    ref = _ref(lease)
    field = b"o:%b\0%b" % (as_bytes(ref.path), key)
    outcome: bytes | None = await engine.read_at(b"HGET", run_key(ref.home, ref.run), field)
    return outcome


async def store_outcome(lease: Lease, engine: Engine, key: bytes, outcome: bytes) -> bytes:
    """Store the outcome of a step of a stage, and return it; if there was one already, return that.

    Raise LeaseLost if the lease is not the current one, or the run does not exist any more.
    """
    item, token, _, reference = _claim(lease)
    accepted, stored = await engine.run(
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


async def _send(engine: Engine, rows: Sequence[FinishRow]) -> list[int | FormatTooNew]:
    values = [value for row in rows for value in row.encode()]
    answers = answered(engine, await engine.run("run_finish", values, feeds=engine.feeds.text))
    # A text is an error, which is that of the row alone.
    return [one if isinstance(one, int) else too_new_in(one.decode(errors="replace")) or 0 for one in answers]


def _claim(lease: Lease, *, fenced: bool = False) -> tuple[bytes, ...]:
    return encoded(lease), b"%d" % lease.token, b"1" if fenced else b"0", _ref(lease).encode()


def _ref(lease: Lease) -> StageRef:
    if lease.stage is None:
        raise InvalidArgument("lease", lease, "the lease of a stage of a flow run")
    return lease.stage


async def report(engine: Engine, stage: StageRef, *, result: bytes | None, error: str = "") -> bool:
    """End a stage that was handed over to another system, no matter which client holds its item.

    Without a result it has failed, and `error` says why. Return False if there is no such run, or the stage
    is not open.
    """
    path = as_bytes(stage.path)
    key = run_key(stage.home, stage.run)
    found = await engine.read_at(b"HMGET", key, b"s:" + path, definition_field(path))
    if found[0] is None or found[1] is None:
        return False
    name = queue_in(read_stored(found[1], {})) or stage.home
    kind, value = (b"failed", error_text(error)) if result is None else (b"done", result)
    reply = await engine.run_at(name, "run_report", (stage.encode(), kind, value))
    return answered(engine, reply)[0] == 1


async def settle(engine: Engine, item_ids: Sequence[str] = (), *, cursor: bytes = b"0") -> bytes:
    """Record the ends of stages whose items ended in another way than by `finish_stages`.

    What is noted to be cancelled is cancelled soon. Without `item_ids`, settle the next that are noted, and
    items of stages that are not there any more: look for these from `cursor` on, and return where to
    continue; `b"0"`: at the beginning.
    """
    ids = [as_bytes(item_id) for item_id in item_ids]
    return await settle_at(engine, engine.name, ids, cursor)


async def settle_at(engine: Engine, name: str, ids: Sequence[bytes], cursor: bytes = b"0") -> bytes:
    """Settle items of the queue of this name, or what `stages_of` returns of them. See `settle`."""
    left, after = [*ids], cursor
    while True:
        some, left = left[:MAX_SETTLED], left[MAX_SETTLED:]
        *reply, after = await engine.run_at(name, "run_settle", some, cursor=cursor, feeds=engine.feeds.text)
        answers = answered(engine, reply)
        left += [item_id for item_id, answer in zip(some, answers, strict=False) if answer == AGAIN]
        if not left:
            return bytes(after)


def stages_of(run: StageRef, ids: Iterable[bytes]) -> list[bytes]:
    """Return what `settle_at` takes for items of a run, of which nothing needs to be noted."""
    start = b"=" + as_bytes(f"{run.home}\0{run.run}\0")
    return [start + item_id.partition(b"/")[2] for item_id in ids]


async def cancel_rest(engine: Engine, reference: StageRef) -> int:
    """Cancel what is left of a run that was cancelled, or of a join that needs no more.

    A call that is stopped is made again by the workers that maintain the run's queue. Nothing is cancelled,
    and the note stays, if the step that has noted it was interrupted before it was decided. The path of the
    reference is empty for the whole run; that of a stage that joins others stands for these, and another one,
    or one that ends with a slash, for the children of that stage. Items on queues that this worker
    does not declare, or that are too new for it, are left to others, with the note. Return how many items
    were cancelled.
    """
    key, cancelled = run_key(reference.home, reference.run), 0
    for _ in range(MAX_PASSES):  # what a pass has cancelled may have let others enter
        patterns = await _patterns_of(engine, key, as_bytes(reference.path))
        if not patterns:
            break
        found, is_left = 0, False
        for pattern in patterns:
            async for name, ids in _open_items(engine, key, as_bytes(reference.run), pattern):
                if not engine.feeds.permit(reference.home, name):
                    is_left = True
                    continue
                try:
                    answers = await engine.run_at(
                        name, "cancel_many", [one for row in ids for one in (row, KEEP_MS)]
                    )
                    await settle_at(engine, name, stages_of(reference, ids))
                except FormatTooNew:
                    is_left = True
                    continue
                found += len(ids)
                cancelled += answers.count(1)
        if not found and not is_left:
            await settle_at(engine, reference.home, [b"!" + reference.encode()])
        if not found:
            break
    return cancelled


async def _patterns_of(engine: Engine, key: bytes, path: bytes) -> list[bytes]:
    """Return globs of the fields with the states of the stages that the rest of a run, or of a join, has.

    Return none if it is not decided that they are to be cancelled.
    """
    stage = path.removesuffix(b"/")
    run_state, state, before = await engine.read_at(b"HMGET", key, b"state", b"s:" + stage, b"b:" + stage)
    names = [] if b"/" in path else [as_bytes(name) for name in names_in(read_stored(before, []))]
    if names:
        names += await _open_before(engine, key, path, names)
        patterns = [b"s:" + escaped(name) + end for name in names for end in (b"", b"/*")]
        is_decided = state is not None  # a join that fails instead ends the run
    else:
        patterns = [b"s:" + escaped(stage) + b"/*" if path else b"s:*"]
        is_decided = path != b"" and state != b"x"
    return patterns if is_decided or run_state != b"active" else []


async def _open_before(engine: Engine, key: bytes, join: bytes, direct: Sequence[bytes]) -> list[bytes]:
    """Return the open stages that lead to a join alone, by way of others: those are not yet entered."""
    listed, result = await engine.read_at(b"HMGET", key, b"stages", b"result")
    stages = [as_bytes(name) for name in names_in(read_stored(listed, []))]
    _, *states = await engine.read_at(b"HMGET", key, b"state", *(b"s:" + name for name in stages))
    left = {name: state for name, state in zip(stages, states, strict=True) if state in {None, b"w", b"x"}}
    if {name for name, state in left.items() if state} <= {join, *direct}:
        return []
    names, before = [*left], dict[bytes, list[bytes]]()
    after: dict[bytes, set[bytes]] = {result or b"": {b""}}  # that of the run is wanted, whatever follows it
    for start in range(0, len(names), SLOW_ROWS):
        some = names[start : start + SLOW_ROWS]
        texts = await engine.read_at(b"HMGET", key, *map(definition_field, some))
        for name, text in zip(some, texts, strict=True):
            for follower in names_in(read_stored(text, dict[str, Any]()).get("then") or []):
                after.setdefault(name, set()).add(as_bytes(follower))
                before.setdefault(as_bytes(follower), []).append(name)
    alone, todo = {join}, [join]
    while todo:
        for name in before.get(todo.pop(), ()):
            if name not in alone and after[name] <= alone:
                alone.add(name)
                todo.append(name)
    return [name for name in alone - {join, *direct} if left[name]]


async def _open_items(
    engine: Engine, key: bytes, run: bytes, pattern: bytes
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield the items of stages that have not ended: the name of a queue, and ids.

    A stage that has fanned out has an item as long as some of its children are not added.
    """
    home = key.rpartition(b":run:")[0].decode(errors="surrogateescape")
    cursor, by_queue, count = b"", dict[str, dict[bytes, None]](), 0
    while cursor != b"0":
        cursor, found = await engine.read_at(
            b"HSCAN", key, cursor or b"0", b"MATCH", pattern, b"COUNT", b"%d" % SCANNED
        )
        open_ = [name[2:] for name, state in zip(found[::2], found[1::2], strict=True) if state in b"wx"]
        for start in range(0, len(open_), SLOW_ROWS):
            paths = open_[start : start + SLOW_ROWS]
            fields = [definition_field(path) for path in paths]
            fields += [b"k:" + path + b"/0" for path in paths]
            texts = await engine.read_at(b"HMGET", key, *fields)
            facts = [read_stored(text, dict[str, Any]()) for text in texts]
            for path, definition in zip(paths, facts, strict=False):
                if definition.get("flow"):
                    await _cancel_sub_run(
                        engine,
                        home,
                        run.decode(errors="surrogateescape"),
                        path.decode(errors="surrogateescape"),
                    )
            definitions = [queue_in(one) for one in facts]
            for at, path in enumerate(paths):
                name = definitions[at] or definitions[at + len(paths)] or home
                by_queue.setdefault(name, {})[run + b"/" + path] = None
        count += len(open_)
        if cursor == b"0" or count >= MAX_LISTED:
            for name, ids in by_queue.items():
                async for some in _ends_first(engine, name, ids):
                    yield name, some
            by_queue, count = {}, 0


async def _cancel_sub_run(engine: Engine, home: str, run: str, stage: str) -> None:
    """Cancel the run for which a stage waits, before its item: who is stopped in between finds it again."""
    sub_run = sub_run_id(run, stage)
    [found] = await engine.read_at(b"HMGET", run_key(home, sub_run), b"parent")
    parent = StageRef.decode(found or b"")
    if parent is not None and parent[:3] == (home, run, stage):
        await engine.run_at(home, "run_cancel", of_run=as_bytes(sub_run), as_failed=b"")
        await cancel_rest(engine, StageRef(home, sub_run, ""))


async def _ends_first(engine: Engine, name: str, ids: dict[bytes, None]) -> AsyncIterator[list[bytes]]:
    """Yield ids in steps: as long as there are some, those that wait near an end of their queue.

    Only there is the id of an item removed with it; deep inside, it would be counted until it is met.
    """
    key, near = as_bytes(f"{name}:queue"), b"%d" % (NEAR_AN_END - 1)
    look = len(ids) > NEAR_AN_END
    while ids:
        found: list[bytes] = []
        if look:
            ends = [await engine.read_at(b"LRANGE", key, b"0", near)]
            ends.append(await engine.read_at(b"LRANGE", key, b"-%d" % NEAR_AN_END, b"-1"))
            found = [*dict.fromkeys(one for end in ends for one in end if one in ids)]
            look = bool(found)
        found = found or [*ids]
        for start in range(0, len(found), SLOW_ROWS):
            yield found[start : start + SLOW_ROWS]
        for one in found:
            del ids[one]


def answered(engine: Engine, reply: list[Any]) -> list[int]:
    """Return the answers in a reply, have the rest of joins that need no more cancelled; log refusals."""
    answers, rests, *refused = reply
    for raw, queue in zip(*(refused[0][at::2] for at in (0, 1)), strict=True) if refused else ():
        if (ref := StageRef.decode(raw)) is not None:
            text = str(QueueNotDeclared(ref.home, queue.decode(errors="replace")))
            if engine.feeds.is_news(text):
                log.error("stage %.200r of the flow run %r is not added: %s", ref.path, ref.run, text)
    for raw in rests:
        if (ref := StageRef.decode(raw)) is not None:
            engine.soon(cancel_rest(engine, ref))
    return list(answers)
