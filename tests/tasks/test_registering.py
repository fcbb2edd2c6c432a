"""A function that cannot be a task is refused when it is registered, with what to do instead."""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - tasks read annotations
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, InvalidArgument, Lease, Provided, TaskQueue
from leasequeue.errors import InvalidTask
from leasequeue.tasks import AsyncTask, BatchTask, PlainTask
from tests.tasks import models
from tests.worker.models import Opaque  # noqa: TC001 - tasks read annotations

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class One:
    x: int


@dataclass
class Two:
    y: int


async def variadic(*to: str) -> None: ...
async def by_any_name(**to: str) -> None: ...
async def positional(to: str, /) -> None: ...
async def union(what: One | Two) -> None: ...
async def text_or_time(when: str | datetime) -> None: ...
async def opaque(connection: Opaque) -> None: ...
async def nested(connections: dict[str, list[Opaque]]) -> None: ...
async def lease(lease: Lease) -> None: ...
async def returns_opaque() -> Opaque: ...  # type: ignore[empty-body] # only its annotation is read
async def not_imported(to: Decimal) -> None: ...
async def generator() -> Any:
    yield 1


def plain(to: str) -> None: ...


async def listed(numbers: list[int]) -> None: ...
async def two_lists(numbers: list[int], others: list[int]) -> None: ...
async def no_list(number: int) -> None: ...
async def only_by_name(*, numbers: list[int]) -> None: ...
async def batch_by_name(names: list[str]) -> dict[str, int]:
    return dict.fromkeys(names, 1)


async def batch_with_lease(numbers: list[int], *, lease: Lease = Provided()) -> None: ...
def in_process(number: int, *, lease: Lease = Provided()) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "advice"),
    [
        (variadic, {}, r"it has \*to: str: arguments are sent by name, so give each a separate parameter"),
        (by_any_name, {}, r"it has \*\*to: str: arguments are sent by name"),
        (positional, {}, "to is positional-only: arguments are sent by name, so remove the /"),
        (
            union,
            {},
            "what: JSON does not distinguish the types of this union; use one of them, or msgspec structs",
        ),
        (text_or_time, {}, "when: JSON does not distinguish the types of this union"),
        (opaque, {}, r"Opaque cannot be read from JSON: use a dataclass.*write connection = Provided\(\)"),
        (nested, {}, "connections: Opaque cannot be read from JSON"),
        (lease, {}, r"the worker fills in lease: write lease: .*Lease = Provided\(\)"),
        (
            returns_opaque,
            {},
            "what it returns: Opaque cannot be read .* or keep no results, with keep_result=None",
        ),
        (not_imported, {}, "import them outside of `if TYPE_CHECKING`"),
        (generator, {}, "a function that returns; a generator would not run"),
        (listed, {"run_in": "thread"}, """run_in='thread': expected None or "loop" for an async function"""),
        (plain, {"run_in": "loop"}, """run_in='loop': expected None, "thread" or "process" for a plain f"""),
        (two_lists, {"batch": 2}, "with batch= it takes one argument, a list, and not numbers, others"),
        (only_by_name, {"batch": 2}, "with batch= it takes one argument"),
        (no_list, {"batch": 2}, r"with batch= it takes a list, such as number: list\[str\]"),
        (batch_by_name, {"batch": 2}, "it returns None or a list, with an answer for each item: dict"),
        (batch_with_lease, {"batch": 2}, r"use current_run\(\)\.leases"),
        (in_process, {"run_in": "process"}, "it cannot be passed a lease as lease: it stays in this process"),
        (lambda: None, {}, 'give it one, name="…"'),
        (functools.partial(listed, []), {}, 'give it one, name="…"'),
        ("send", {}, "is to be a function"),
    ],
)
async def test_a_function_that_cannot_be_a_task_is_refused(
    tasks: TaskQueue, function: Any, options: dict[str, Any], advice: str
) -> None:
    with pytest.raises(InvalidTask, match=advice) as refused:
        tasks.task(name=None if "name=" in advice else "send", **options)(function)
    assert refused.value.problem in str(refused.value)
    assert not tasks.tasks


async def test_a_task_of_a_task_is_refused_and_one_of_its_function_is_not(tasks: TaskQueue) -> None:
    """Calling the first one returns a coroutine, which a plain task of it would not await."""
    task = tasks.task(listed)
    with pytest.raises(InvalidTask, match=r"it is a task already: pass listed\.function"):
        tasks.task(name="again")(task)
    again = tasks.task(name="again")(task.function)
    assert [one.function for one in tasks.tasks] == [again.function] * 2 == [listed] * 2


async def test_a_second_task_of_a_name_is_refused(tasks: TaskQueue) -> None:
    tasks.task(listed)
    with pytest.raises(
        InvalidTask, match=r"there is a task of this name, .*test_registering\.listed: give one"
    ):
        tasks.task(name="listed")(no_list)
    tasks.task(no_list)
    assert [task.name for task in tasks.tasks] == ["listed", "no_list"]


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"timeout": 0},
            {"retry": 3},
            {"batch": 0},
            {"weight": -1},
            {"lease_time": "long"},
            {"keep_result": 0},
        ),
        *({"run_in": "moon"}, {"queue": ""}),
    ],
)
async def test_an_invalid_setting_is_refused(tasks: TaskQueue, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        tasks.task(**options)(listed)
    assert not tasks.tasks


async def test_a_queue_of_the_same_name_on_another_server_is_refused(tasks: TaskQueue) -> None:
    with pytest.raises(InvalidArgument, match="where the tasks of its name are"):
        tasks.task(queue=AsyncWorkQueue.from_url("redis://elsewhere", tasks.name))(listed)


async def test_a_return_type_that_cannot_be_read_is_fine_without_results(tasks: TaskQueue) -> None:
    assert tasks.task(keep_result=None)(returns_opaque).name == "returns_opaque"


async def test_a_task_is_still_its_function(tasks: TaskQueue) -> None:
    kinds: list[Any] = [tasks.task(no_list), tasks.task(in_process), tasks.task(batch=2)(listed)]
    assert [type(kind) for kind in kinds] == [AsyncTask, PlainTask, BatchTask]
    assert [kind.function for kind in kinds] == [no_list, in_process, listed]
    assert kinds[0].__name__ == "no_list"
    assert await kinds[0](1) is None
    assert await kinds[2]([1]) is None
    assert kinds[1](1) is None


def test_a_task_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(models.pid)) is models.pid  # noqa: S301 - our own
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(models.pid.options(delay=1))


async def test_tasks_take_any_parameter_without_annotation(tasks: TaskQueue) -> None:
    @tasks.task
    async def anything(one, *, two=2):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - on purpose
        return [one, two]

    assert anything.call({"x": [None]}).arguments == {"one": {"x": [None]}}


async def test_an_unknown_option_is_refused_with_those_that_there_are(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str) -> None: ...

    known = "id, content_id, delay, at, correlation, priority, group, tags, weight, expires_in, dedupe_for, "
    known += "unique_until_start, replace"
    with pytest.raises(TypeError) as raised:
        send.options(prio=3)  # type: ignore[call-arg]  # that is the test
    assert str(raised.value) == f"unexpected keyword argument 'prio': options() takes {known}"
