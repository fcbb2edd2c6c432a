# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers see of tasks. Nothing here is run: mypy and pyright check it.

A line with `type: ignore` is a mistake that a type checker must find: both report an ignore that is not
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from leasehold import AsyncWorkQueue, Call, Job, JobStatus, Lease, Provided, RetryPolicy, TaskQueue, Worker

if TYPE_CHECKING:
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


async def results() -> None:
    assert_type(await send.add("ann"), Job[Receipt])
    assert_type(await (await send.add("ann", subject="x")).result(timeout=5), Receipt)
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
