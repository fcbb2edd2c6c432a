# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers see of tasks. Nothing here is run: mypy and pyright check it.

A line with `type: ignore` is a mistake that a type checker must find: both report an ignore that is not
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from leasequeue import (
    AsyncWorkQueue,
    AtLeast,
    Call,
    Chain,
    FanOut,
    Flow,
    FlowRun,
    Group,
    Job,
    Lease,
    Next,
    Provided,
    RetryPolicy,
    TaskQueue,
    Worker,
    fan_out,
    group,
    signal,
)
from leasequeue.flow import Stage
from leasequeue.views import JobStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from dataclasses import dataclass

    @dataclass
    class Receipt:
        number: int

    class Smtp:
        async def send(self, to: str) -> Receipt: ...


tasks = TaskQueue.from_url("redis://localhost", "default")


@tasks.task
async def send(
    to: str, subject: str = "Hi", *, smtp: Smtp = Provided(), lease: Lease = Provided()
) -> Receipt:
    return await smtp.send(f"{to} {subject} {lease.id}")


@tasks.task(timeout=60, retry=RetryPolicy(attempts=5), keep_result=600, queue="images")
async def resize(path: str, *, width: int) -> bytes:
    return path.encode() * width


@tasks.task
def plain(number: int) -> int:
    return number


@tasks.task(run_in="process", name="digest")
def in_process(data: bytes) -> str:
    return data.hex()


@tasks.task(batch=100)
async def halve(numbers: list[int]) -> list[float | Exception]:
    return [number / 2 for number in numbers]


@tasks.task(batch=100, queue="mails")
async def send_all(to: list[str], *, smtp: Smtp = Provided()) -> None:
    for one in to:
        await smtp.send(one)


@tasks.task(batch=100)
def count(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@tasks.task
async def is_odd(number: int) -> bool:
    return number % 2 == 1


@tasks.task
async def describe(value: int | str | None, *, unit: str = "") -> str:
    return f"{value} {unit}"


@tasks.task
async def add_up(numbers: Sequence[int], start: int = 0) -> int:
    return sum(numbers, start)


@tasks.task
async def split(number: int) -> FanOut[int]:
    return fan_out([plain.call(one) for one in range(number)], join="settled")


@tasks.task
async def split_twice(number: int) -> FanOut[list[int]]:
    return fan_out([split.call(one) for one in range(number)], join=AtLeast(1))


@tasks.task
async def select(number: int) -> Next[int]:
    return Next(number, "plain")


@tasks.task
async def untyped(number: int) -> Any:
    return number


async def results() -> None:
    assert_type(await send.add("ann"), Job[Receipt])
    assert_type(await (await send.add("ann", subject="x")).result(timeout=120), Receipt)
    assert_type(await send.options(id="m1", delay=60).add("ann"), Job[Receipt])
    assert_type(send.call("ann"), Call[Receipt])
    assert_type(send.job("m1"), Job[Receipt])
    assert_type(await send.job("m1").status(), JobStatus)
    assert_type(send.job("m1").created, bool | None)
    assert_type(await resize.add("cat.jpg", width=5), Job[bytes])
    assert_type(await plain.add(5), Job[int])
    assert_type(await in_process.options(content_id=True).add(b"x"), Job[str])
    assert_type(await halve.add(5), Job[float])
    assert_type(await send_all.add("ann"), Job[None])
    assert_type(await count.add("ann"), Job[int])
    assert_type(await tasks.add_many([send.call("ann"), send.call("bob")]), list[Job[Receipt]])
    await tasks.add_many([send.call("ann"), resize.call("cat.jpg", width=5)])


async def functions() -> None:
    assert_type(await send("ann"), Receipt)
    assert_type(await resize("cat.jpg", width=5), bytes)
    assert_type(plain(5), int)
    assert_type(in_process(b"x"), str)


async def mistakes(queue: AsyncWorkQueue) -> None:
    await send.add(5)  # type: ignore[arg-type]
    await send.add("ann", cc="bob")  # type: ignore[call-arg]
    await send.add()  # type: ignore[call-arg]
    await send.options(delay=60).add(b"ann")  # type: ignore[arg-type]
    await resize.add("cat.jpg", 5)  # type: ignore[call-arg]
    await plain.add("5")  # type: ignore[arg-type]
    await halve.add("5")  # type: ignore[arg-type]
    await count.add(["ann"])  # type: ignore[arg-type]
    await send("ann", 5)  # type: ignore[arg-type]
    plain("5")  # type: ignore[arg-type]
    send.call(to=5)  # type: ignore[arg-type]
    await tasks.add_many([send])  # type: ignore[arg-type]
    Worker(queue)  # type: ignore[arg-type]
    tasks.task(timeout="long")(plain)  # type: ignore[call-overload]
    number: str = await plain.job("x").result()  # type: ignore[assignment]
    assert number


async def chains() -> None:
    assert_type(plain.call(1).then(describe), Chain[str])
    assert_type(plain.call(1).then(describe, unit="m").then(describe), Chain[str])
    assert_type(plain.call(1).then(halve), Chain[float])
    assert_type(plain.options(priority=1).call(1).then(is_odd.options(delay=5)), Chain[bool])
    assert_type(is_odd.call(1).then(plain), Chain[int])
    assert_type(send.call("ann").then(plain.call(5)), Chain[int])
    assert_type(send_all.call("ann").then(describe), Chain[str])
    assert_type(await plain.call(1).then(describe).add(), FlowRun[str])
    assert_type(await (await plain.call(1).then(describe).add(id="7", keep=60)).result(timeout=120), str)
    assert_type(plain.call(1).then(describe).flow_run("7"), FlowRun[str])
    assert_type(plain.call(1).chain(), Chain[int])


async def groups() -> None:
    calls = group([plain.call(1), plain.call(2)])
    assert_type(calls, Group[int])
    assert_type(await calls.add(), FlowRun[list[int]])
    assert_type(calls.then(add_up, 5), Chain[int])
    assert_type(group([plain.call(1).then(is_odd), is_odd.call(1)], join="settled"), Group[bool])
    assert_type(group([calls, calls]), Group[list[int]])
    assert_type(group(plain.call(one) for one in range(3)).then(add_up, start=1), Chain[int])
    assert_type(plain.call(1).then(calls, drop_result=True), Chain[list[int]])
    assert_type(plain.call(1).then(calls, drop_result=True).then(add_up), Chain[int])
    assert_type(send_all.call("ann").then(calls).then(add_up), Chain[int])
    group([plain.call(1), send.call("ann")])


async def partial_calls() -> None:
    taking = group([describe.partial(), describe.partial(unit="m")])
    assert_type(plain.call(1).then(taking), Chain[list[str]])
    assert_type(plain.call(1).then(group([describe.partial(), describe.partial()])), Chain[list[str]])
    assert_type(plain.call(1).then(group([plain.partial().then(plain)])).then(add_up), Chain[int])
    assert_type(is_odd.call(1).then(plain.partial()), Chain[int])
    mixed = group([add_up.partial(5), plain.call(7)])
    assert_type(split.call(1).then(mixed).then(add_up), Chain[int])
    assert_type(split.call(1).then(add_up.partial()), Chain[int])
    numbers = group([plain.partial()])
    describe.call(1).then(plain.partial())  # type: ignore[arg-type]
    describe.call(1).then(numbers)  # type: ignore[arg-type]
    describe.partial(cm=5)  # type: ignore[call-arg]
    await numbers.add()  # type: ignore[attr-defined]


async def fan_outs() -> None:
    assert_type(split.call(3).then(add_up), Chain[int])
    assert_type(plain.call(3).then(split).then(add_up), Chain[int])
    assert_type(await split.call(3).chain().add(), FlowRun[list[int]])
    assert_type(await split.call(3).add(), FlowRun[list[int]])
    assert_type(await split.add(3), FlowRun[list[int]])
    assert_type(await split.options(priority=2).add(3), FlowRun[list[int]])
    assert_type(await (await split.add(3)).result(timeout=120), list[int])
    assert_type(await split_twice.add(3), FlowRun[list[list[int]]])
    assert_type(await untyped.add(3), Job[Any])
    assert_type(await untyped.call(3).add(), Job[Any])
    assert_type(split.call(3).chain().flow_run("7"), FlowRun[list[int]])
    assert_type(group([split.call(1), split.call(2)]), Group[list[int]])
    assert_type(await split_twice.call(3).chain().add(), FlowRun[list[list[int]]])
    assert_type(fan_out([plain.call(1)]), FanOut[int])
    assert_type(fan_out([plain.call(1).then(describe).then(describe)]), FanOut[str])
    assert_type(fan_out([plain.call(1).then(split)]), FanOut[list[int]])
    assert_type(fan_out([group([plain.call(1)])]), FanOut[list[int]])


async def mistakes_in_chains() -> None:
    describe.call("x").then(plain)  # type: ignore[call-overload]
    plain.call(1).then(describe, cm=5)  # type: ignore[call-overload]
    plain.call(1).then(describe, unit=5)  # type: ignore[call-overload]
    plain.call(1).then(send, "Hi")  # type: ignore[call-overload]
    plain.call(1).then(resize, width=5)  # type: ignore[call-overload]
    plain.call(1).then(describe).then(add_up)  # type: ignore[call-overload]
    plain.call(1).then(describe("x"))  # type: ignore[call-overload]
    plain.call(1).then(group([plain.call(1)]))  # type: ignore[call-overload]
    group([plain.call(1)]).then(plain)  # type: ignore[call-overload]
    group([describe.call(1)]).then(add_up)  # type: ignore[call-overload]
    group([plain])  # type: ignore[arg-type]
    group([plain.call(1)], join="any")  # type: ignore[call-overload]
    split.call(1).then(plain)  # type: ignore[call-overload]
    fan_out([plain])  # type: ignore[arg-type]
    select.call(1).then(plain)  # type: ignore[call-overload]
    await split.add("3")  # type: ignore[call-overload]
    run: FlowRun[str] = await plain.call(1).chain().add()  # type: ignore[assignment]
    await run.result()


flow = Flow("access", tasks, attributes={"number": int}, lookup=["number"])


async def flows() -> None:
    first = flow.stage(plain)
    assert_type(first, Stage[int])
    assert_type(flow.stage(select, after=first, takes={"number": first}), Stage[int])
    fanned = flow.stage(split, after=[first, "select"], takes={"number": first.member("x")}, join=AtLeast(1))
    assert_type(fanned, Stage[list[int]])
    assert_type(flow.stage("render", queue="videos", takes={"all": [first, fanned, "number"]}), Stage[Any])
    assert_type(flow.then_start(flow, after=first), Stage[str])
    assert_type(flow.stage(Flow("sum", tasks, returns=int), after=first, timeout=60), Stage[int])
    assert_type(await flow.start(number=1, priority=2), FlowRun[Any])
    assert_type(await Flow("sum", tasks, returns=int).start(), FlowRun[int])
    assert_type(Flow("sums", tasks, returns=list[int]).flow_run("7"), FlowRun[list[int]])
    assert_type(flow.signal("yes", type=int, after=first, within=60, otherwise=1), Stage[int])
    assert_type(flow.signal("maybe", type=int, after="yes", within=60, otherwise=None), Stage[int | None])
    assert_type(flow.signal("any"), Stage[Any])
    assert_type(await flow.flow_run("7").signal("yes", 1), bool)
    assert_type(await plain.call(1).then(signal("yes", type=int)).then(plain).add(), FlowRun[int])
    votes = group([signal(f"{n}", type=str) for n in range(3)], join=AtLeast(2))
    assert_type(plain.call(1).then(votes, drop_result=True), Chain[list[str]])
    Worker(flow, flow.only(first, "split"))


async def mistakes_in_flows() -> None:
    text: str = await Flow("text", tasks, returns=int).flow_run("7").result()  # type: ignore[assignment]
    assert text
    flow.stage(plain, concurency=1)  # type: ignore[call-overload]
    flow.stage(plain, join="any")  # type: ignore[call-overload]
    flow.stage(plain, after=1)  # type: ignore[call-overload]
    flow.signal("yes", withn=1)  # type: ignore[call-overload]
    plain.call(1).then(signal("yes", type=str)).then(plain)  # type: ignore[call-overload]
    flow.stage(plain.call(1))  # type: ignore[call-overload]
    flow.stage(Flow("sum", tasks), queue="other")  # type: ignore[call-overload]
