"""A small example of each feature: `python features.py`, or `python features.py tags limits`.

Each has a queue of its own on a private server, and the name of its page in docs/pages/how-to. What it
returns is printed, and compared. All of them need
`pip install "./leasequeue[embedded,dashboard,payloads,schedules]" httpx`.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from redis.asyncio import Redis
from starlette.testclient import TestClient

from leasequeue import (
    AsyncWorkQueue,
    FanOut,
    Fleet,
    Flow,
    Item,
    Lease,
    Next,
    Provided,
    RetryPolicy,
    Run,
    TaskQueue,
    Worker,
    call_sync,
    current_run,
    fan_out,
    group,
    lease_from,
)
from leasequeue.autoscale import JobPolicy, Signals, wanted_workers
from leasequeue.codecs import AesGcm, Zstd
from leasequeue.dashboard import dashboard

Example = Callable[[AsyncWorkQueue], Awaitable[object]]
EXAMPLES: dict[str, tuple[Example, object]] = {}


def example(page: str, shows: object) -> Callable[[Example], Example]:
    """Add a function to the examples, with the page that explains it and what it returns."""

    def add(function: Example) -> Example:
        EXAMPLES[page] = (function, shows)
        return function

    return add


def tasks_on(queue: AsyncWorkQueue) -> TaskQueue:
    """Return a task queue; a service makes it in a module: TaskQueue.from_url("redis://…", "mails")."""
    return TaskQueue.from_url(queue.url or "", queue.name)


@dataclass
class Mail:
    """What tasks take and return may be dataclasses, models, datetimes and more."""

    to: str
    text: str = "Welcome!"


@example("tasks", shows="8 characters to ann@example.org, attempt 1")
async def typed_calls(queue: AsyncWorkQueue) -> object:
    """Call a function in another process, with typed arguments, and await its result."""
    tasks = tasks_on(queue)

    @tasks.task(timeout=60)
    async def send(mail: Mail, *, lease: Lease = Provided()) -> str:
        return f"{len(mail.text)} characters to {mail.to}, attempt {lease.attempt}"

    job = await send.add(Mail("ann@example.org"))
    await Worker(tasks).drain()  # in a service: leasequeue worker app:tasks
    return await job.result(timeout=10)


@example("retries", shows=(["attempt 1", "attempt 2"], 1, "waiting"))
async def retries_and_dead_letters(queue: AsyncWorkQueue) -> object:
    """Retry what fails, keep what has failed for good, and requeue it."""
    worker, attempts = Worker(retry=RetryPolicy(attempts=2, first=0)), []

    @worker.handler(queue)
    async def send(lease: Lease) -> None:
        attempts.append(f"attempt {lease.attempt}")
        raise ConnectionError("no mail server")

    await queue.add_item(Item("hello", id="m1"))
    await worker.drain()
    dead = await queue.dead_letters.count()
    await queue.dead_letters.requeue("m1")
    view = await queue.find("m1")
    return attempts, dead, view and view.state


@example("delays", shows=(1, "later"))
async def now_or_later(queue: AsyncWorkQueue) -> object:
    """Add an item for later, and run it now after all."""
    await queue.add_item(Item("", id="later"), delay=timedelta(hours=2))
    scheduled = (await queue.counts()).scheduled
    await queue.promote("later")
    return scheduled, (await queue.lease_many(1, 30))[0].id


@example("schedules", shows=["nightly", "poll"])
async def cron_and_intervals(queue: AsyncWorkQueue) -> object:
    """Run tasks at times of day and at intervals; the workers add what is due."""
    tasks = tasks_on(queue)

    @tasks.task(cron="0 3 * * *", tz="Europe/Berlin")
    async def nightly() -> None: ...

    @tasks.task(every=300)
    async def poll() -> None: ...

    await Worker(tasks).drain()  # a worker declares both, and adds what is due
    return sorted(view.name for view in await queue.schedules.list())


@example("batch", shows=[["tea", "cup"]])
async def calls_that_run_together(queue: AsyncWorkQueue) -> object:
    """Run calls together, once there are enough of them."""
    tasks, batches = tasks_on(queue), []

    @tasks.task(batch=2, batch_wait=60)
    async def index(words: list[str]) -> None:
        batches.append(words)

    await tasks.add_many(map(index.call, ["tea", "cup", "pot"]))  # the third waits for a fourth
    await Worker(tasks).drain()
    return batches


def in_a_thread_or_a_process(text: str) -> str:
    """Say where a plain function runs. One for a process is imported there, so it is in a module."""
    return f"{text}, in the main thread: {threading.current_thread() is threading.main_thread()}"


@example("cpu-bound", shows="tea, in the main thread: False")
async def plain_functions(queue: AsyncWorkQueue) -> object:
    """Run a plain function in a thread, or in a process, beside others."""
    tasks = tasks_on(queue)
    task = tasks.task(in_a_thread_or_a_process)  # run_in="process" takes a core of its own
    job = await task.add("tea")
    await Worker(tasks).drain()
    return await job.result(timeout=10)


@example("results", shows=b"4")
async def results_of_items(queue: AsyncWorkQueue) -> object:
    """Keep a result with the completion, and wait for it."""
    await queue.add_item(Item("2 + 2", id="sum"))
    [lease] = await queue.lease_many(1, 30)
    await queue.complete(lease, result=b"4", keep_result=600)
    return await queue.results.wait("sum", timeout=10)


@example("streams", shows=["Forty", "two"])
async def chunks_of_a_job(queue: AsyncWorkQueue) -> object:
    """Stream what a job emits while it runs, to any number of readers."""
    tasks = tasks_on(queue)

    @tasks.task(streams=str)
    async def answer(question: str) -> None:
        for word in question.split():
            await current_run().emit(word)

    job = await answer.add("Forty two")
    await Worker(tasks).drain()
    return [chunk.value async for chunk in job.stream()]


@example("logs", shows=[(1, "reading 2026-03")])
async def logs_with_the_job(queue: AsyncWorkQueue) -> object:
    """Keep what a task logs with its job."""
    tasks, log = tasks_on(queue), logging.getLogger("shop")
    log.setLevel(logging.INFO)

    @tasks.task(keep_logs="64KiB")
    async def report(month: str) -> None:
        log.info("reading %s", month)

    job = await report.add("2026-03")
    await Worker(tasks).drain()
    return [(record.attempt, record.message) for record in await job.logs()]


@example("flows", shows=("3 things, 300 g", [200, 100]))
async def chains_groups_and_fan_out(queue: AsyncWorkQueue) -> object:
    """Join parallel calls, and those that a task makes while it runs."""
    tasks = tasks_on(queue)

    @tasks.task
    async def weigh(thing: str) -> int:
        return 100 * len(thing)

    @tasks.task
    async def total(weights: list[int]) -> str:
        return f"{len(weights)} things, {sum(weights)} g"

    @tasks.task
    async def each(things: list[str]) -> FanOut[int]:
        return fan_out(weigh.call(thing) for thing in things)

    joined = await group(weigh.call(thing) for thing in "abc").then(total).add()
    fanned = await each.add(["ab", "c"])
    await Worker(tasks).drain()
    return await joined.result(timeout=10), await fanned.result(timeout=10)


@example("approvals", shows="paid 30, says ann")
async def a_flow_that_waits_for_a_person(queue: AsyncWorkQueue) -> object:
    """Wait for an approval, with a time limit, without a worker; then choose what is next."""
    tasks = tasks_on(queue)

    @tasks.task
    async def decide(by: str | None) -> Next[str]:
        return Next(f"says {by}", "pay") if by else Next("no answer", "refuse")

    @tasks.task
    async def pay(amount: int, decide: str) -> str:
        return f"paid {amount}, {decide}"

    @tasks.task
    async def refuse(decide: str) -> str:
        return decide

    requests = Flow("requests", tasks, attributes={"amount": int})
    asked = requests.signal("by", type=str, within=timedelta(days=3), otherwise=None)
    decided = requests.stage(decide, after=asked, choose=["pay", "refuse"])
    paid = requests.stage(pay, after=decided)
    requests.stage(refuse, after=decided)
    run = await requests.start(amount=30)
    await run.signal("by", "ann")
    await Worker(requests).drain()
    return (await run.view()).results[paid.name]


@example("priorities", shows=(["urgent", "a0", "b0", "a1"], {"b": 1}))
async def urgent_first_and_fair_between_tenants(queue: AsyncWorkQueue) -> object:
    """Lease urgent items first, and share fairly between tenants."""
    for tenant in "ab":
        await queue.add_items([Item("", id=f"{tenant}{n}") for n in range(2)], group=tenant)
    await queue.add_item(Item("", id="urgent"), priority=5)
    leases = await queue.lease_many(4, 30)
    groups = await queue.groups.list()
    return [lease.id for lease in leases], {name: found.waiting for name, found in groups.items()}


@example("limits", shows=(2, 0, "api"))
async def limits_holds_and_pauses(queue: AsyncWorkQueue) -> object:
    """Limit what runs, over all workers; limit a service in handlers; pause."""
    await queue.limits.set(concurrency=2, rate="100/s", burst=10)
    await queue.limits.set(hold="api", concurrency=5)
    await queue.add_items([Item("") for _ in range(5)])
    leased = len(await queue.lease_many(5, 30))
    await queue.limits.remove()
    await queue.pause(reason="the mail server is down", for_=600)
    paused = len(await queue.lease_many(5, 30, block=False))
    async with queue.limits.hold("api"):  # in a handler, around the call of a service
        [held] = [name for name, one in (await queue.limits.holds()).items() if one.held]
    return leased, paused, held


@example("uniqueness", shows=([True, False, True], "abc", []))
async def once_debounced_and_in_time(queue: AsyncWorkQueue) -> object:
    """Add an item once, replace it while it waits, discard it when it is late."""
    added = [await queue.add_item(Item("", id="once"), dedupe_for=600) for _ in range(2)]
    added.append(await queue.add_item(Item("", id="late"), expires_in=0.001))
    for text in ("a", "ab", "abc"):
        await queue.add_item(Item(text, id="search"), delay=60, replace=True)
    found = await queue.find("search")
    await asyncio.sleep(0.05)
    late = [lease.id for lease in await queue.lease_many(5, 30) if lease.id == "late"]
    return added, found and (found.data or b"").decode(), late


@example("tags", shows=({"import-7": 3}, 3))
async def all_of_an_import(queue: AsyncWorkQueue) -> object:
    """Find, count and cancel all items with a tag."""
    await queue.add_items([Item("") for _ in range(3)], tags=["import-7"])
    return await queue.tags.list(), await queue.tags.cancel("import-7")


@example("cancel", shows=(0.5, True, "cancelled"))
async def progress_and_cancellation(queue: AsyncWorkQueue) -> object:
    """Follow how far a run is, and cancel it."""
    tasks, ended = tasks_on(queue), asyncio.Event()

    @tasks.task
    async def count() -> None:
        current_run().progress(0.5)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    job, worker = await count.add(), Worker(tasks)
    working = asyncio.create_task(worker.run())
    done = await anext(aiter(job.progress()))
    cancelled = await job.cancel()
    await ended.wait()
    worker.stop()
    await working
    return done, cancelled, "cancelled"


@example("sync", shows=1)
async def from_plain_code(queue: AsyncWorkQueue) -> object:
    """Call any method from code without an event loop."""

    def view() -> int:  # of Flask or Django: in a thread without an event loop
        call_sync(queue.add_item, Item("hello"))
        return call_sync(queue.counts).waiting

    return await asyncio.to_thread(view)


@example("shutdown", shows=("slow", 1))
async def a_deploy_interrupts_a_run(queue: AsyncWorkQueue) -> object:
    """Stop a worker: what it runs returns to the front, without an attempt."""
    worker, begun = Worker(grace=0.1), asyncio.Event()

    @worker.handler(queue)
    async def work(_: bytes) -> None:
        begun.set()
        await asyncio.sleep(3600)

    await queue.add_item(Item("", id="slow"))
    working = asyncio.create_task(worker.run())
    await begun.wait()
    worker.stop()  # as SIGTERM does
    await working
    [lease] = await queue.lease_many(1, 30)
    return lease.id, lease.attempt  # at the front again, and still the first attempt


@example("fleet", shows=["mailer"])
async def who_works(queue: AsyncWorkQueue) -> object:
    """See who works, and stop one from another process."""
    worker = Worker(name="mailer")

    @worker.handler(queue)
    async def work(_: bytes) -> None: ...

    working = asyncio.create_task(worker.run())
    while not (workers := await Fleet(queue).workers()):  # noqa: ASYNC110 - no event says that it has registered
        await asyncio.sleep(0.01)
    await Fleet(queue).stop("mailer")
    await working
    return [one.name for one in workers]


@example("worker", shows=(["u1", "b1"], ["before u1", "before b1"]))
async def handlers_middleware_and_several_queues(queue: AsyncWorkQueue) -> object:
    """Handle the items of several queues in strict order, with middleware."""
    ran: list[str] = []
    seen: list[str] = []

    async def log_run(run: Run, call_next: Callable[[Run], Awaitable[object]]) -> object:
        seen.append(f"before {run.lease.id}")
        return await call_next(run)

    worker = Worker(concurrency=1, order="strict", middleware=[log_run])
    urgent = AsyncWorkQueue.from_url(queue.url or "", f"{queue.name}-urgent")

    @worker.handler(queue)
    @worker.handler(urgent)  # the first
    async def work(lease: Lease) -> None:
        ran.append(lease.id)

    await queue.add_item(Item("", id="b1"))
    await urgent.add_item(Item("", id="u1"))
    await worker.drain()
    return ran, seen


@example("lease-times", shows=([True, False], True))
async def leases_and_fencing_tokens(queue: AsyncWorkQueue) -> object:
    """Complete an item once, whoever holds it, and number the leases."""
    await queue.add_item(Item(""))
    [slow] = await queue.lease_many(1, 0.01)
    [quick] = await queue.lease_many(1, 30)  # waits until the first has expired
    # Of all holders one completes the item; a store refuses a token that is lower than the one that it has.
    return [await queue.complete(quick), await queue.complete(slow)], slow.token < quick.token


@example("events", shows=["added", "leased", "completed"])
async def what_happened(queue: AsyncWorkQueue) -> object:
    """Record each change of each item."""
    await queue.events.keep(count=1_000)
    await queue.add_item(Item(""))
    [lease] = await queue.lease_many(1, 30)
    await queue.complete(lease)
    return [event.what async for event in queue.events(follow=False)]


@example("watch", shows=(1, 1))
async def counts_and_history(queue: AsyncWorkQueue) -> object:
    """Count what waits, and keep a history by minute, hour and day."""
    await queue.history.keep()
    await queue.add_item(Item(""))
    history = await queue.history("hour", count=1)
    return (await queue.stats()).counts.waiting, sum(cell.added for cell in history.cells)


@example("whole-queues", shows=(["m1"], 1))
async def move_purge_and_lease_from_several(queue: AsyncWorkQueue) -> object:
    """Move items to another queue, lease from several, empty one."""
    archive = AsyncWorkQueue.from_url(queue.url or "", f"{queue.name}-archive")
    await queue.add_items([Item("", id="m1"), Item("", id="m2")])
    await queue.admin.move(archive.name, count=1)
    leased = [lease.id for lease in await lease_from([archive, queue], 1, 30)]
    return leased, await queue.admin.purge()


@example("clean", shows=((), "lost"))
async def check_and_repair(queue: AsyncWorkQueue) -> object:
    """Check all keys of a queue, and repair what another client left behind."""
    findings = (await queue.admin.fsck()).findings
    async with Redis.from_url(queue.url or "") as client:
        await client.set(f"{queue.name}:item:lost", b"of a client that died before it queued the id")
    await queue.deep_clean()
    return findings, (await queue.lease_many(1, 30))[0].id


@example("share", shows="Hello, Zoë!")
async def a_task_from_another_language(queue: AsyncWorkQueue) -> object:
    """Add a task with two commands of any client of the server."""
    tasks = tasks_on(queue)

    @tasks.task
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async with Redis.from_url(queue.url or "") as client:  # what any client does, such as that for Node.js
        await client.set(f"{queue.name}:item:g1", '{"task": "greet", "args": {"name": "Zoë"}}')
        await client.lpush(f"{queue.name}:queue", "g1")
    await Worker(tasks).drain()
    return await greet.job("g1").result(timeout=10)


@example("at-most-once", shows="done")
async def complete_first(queue: AsyncWorkQueue) -> object:
    """Complete an item before the work, so that it never runs twice."""
    await queue.add_item(Item("a parcel"))
    [lease] = await queue.lease_many(1, 30)
    return "done" if await queue.complete(lease) else "another has it"


@example("payloads", shows=(b"secret", False))
async def compressed_and_encrypted(queue: AsyncWorkQueue) -> object:
    """Compress and encrypt payloads."""
    codec = [Zstd(above=1024), AesGcm({"2026-11": os.urandom(32)})]
    sealed = AsyncWorkQueue.from_url(queue.url or "", queue.name, codec=codec)
    await sealed.add_item(Item("secret", id="m1"))
    stored = await queue.find("m1")
    [lease] = await sealed.lease_many(1, 30)
    return lease.data, b"secret" in ((stored and stored.data) or b"")


@example("shards", shows=(100, 4))
async def one_queue_over_a_cluster(queue: AsyncWorkQueue) -> object:
    """Spread one queue over the nodes of a cluster."""
    wide = AsyncWorkQueue.from_url(queue.url or "", queue.name, shards=4)  # with cluster=True in production
    await wide.add_items([Item("") for _ in range(100)])
    return (await wide.counts()).waiting, len(wide.shards)


@example("dashboard", shows=200)
async def pages_in_the_browser(queue: AsyncWorkQueue) -> object:
    """Show queues in the browser, alone or in an application."""
    await queue.add_item(Item("hello"))

    def visit() -> int:
        with TestClient(dashboard(queue)) as browser:  # in an application: app.mount("/queues", …)
            return browser.get("/").status_code

    return await asyncio.to_thread(visit)


@example("autoscale", shows=50_000)
async def how_many_workers(_queue: AsyncWorkQueue) -> object:
    """Compute how many workers a backlog needs to begin within a minute."""
    seen = Signals(waiting=100_000, service_time=30.0)  # the command measures this
    return wanted_workers(seen, JobPolicy(age_target=60.0), spin_up=30.0).workers


async def main(names: list[str]) -> int:
    """Run the examples of these names, or all, and return how many return something else than they show."""
    wrong = 0
    async with AsyncWorkQueue.embedded("examples") as server:
        for name in names or EXAMPLES:
            function, shows = EXAMPLES[name]
            returned = await function(AsyncWorkQueue.from_url(server.url or "", name))
            print(f"{name}: {function.__doc__} {returned!r}")
            wrong += returned != shows
    return wrong


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
