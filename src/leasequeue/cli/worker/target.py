"""Importing the worker, or the tasks, that a command line names."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import leasequeue
from leasequeue.errors import InvalidFlow, LeasequeueError
from leasequeue.errors.describing import traceback_of
from leasequeue.flow import Flow, FlowPart
from leasequeue.tasks import Task, TaskQueue
from leasequeue.worker import Worker

if TYPE_CHECKING:
    from types import ModuleType, TracebackType


#: What a new worker is made for.
_SOURCES = (TaskQueue, Flow, FlowPart)
#: The paths of files that are left out at the beginning of a traceback.
_NOT_USER_CODE = (
    str(Path(leasequeue.__file__).parent) + os.sep,
    str(Path(asyncio.__file__).parent) + os.sep,
    contextlib.__file__,
    importlib.__file__,
    "<frozen importlib",
)


class Unusable(Exception):
    """The target is not a worker. The text says why, with the user's traceback if there is one."""


def find_worker(target: str) -> Worker:
    """Import a worker, a task queue, or a function that returns one, and call that. Tasks get a new worker.

    The current folder comes first in `sys.path`; for a file, the folder of its package.

    Args:
        target: `module:name`, `package.module:name.of.attribute` or `path/to/file.py:name`.
    """
    return _as_worker(_source(target), target)


def find_task(target: str, name: str) -> Task[..., Any]:
    """Import a task queue or a flow as `find_worker` does, and return its task of a name."""
    found = _source(target)
    tasks = found.tasks if isinstance(found, Flow) else found
    if not isinstance(tasks, TaskQueue):
        raise Unusable(f"{target} is {_described(found)}: name the TaskQueue that the task belongs to")
    _as_worker(found, target)  # imports the modules with tasks
    known = {task.name: task for task in tasks.tasks}
    if name not in known:
        raise Unusable(f"{target} has no task {name!r}; it has {', '.join(known)}")
    return known[name]


def _source(target: str) -> Any:
    """Import what a target names: a worker or what one is made for, or what a function returns."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise Unusable(
            f"{target!r} is not a target: write module:tasks, module:worker or path/to/file.py:worker"
        )
    _put_first(Path.cwd())
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    try:
        found = functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        raise Unusable(f"{place} has no {name!r}{_suggestion(module)}") from None
    if isinstance(found, (Worker, *_SOURCES)):
        return found
    if not callable(found) or isinstance(found, (type, Task)):
        raise Unusable(
            f"{target} is {_described(found)}, not a TaskQueue, a Worker or a function that returns one"
        )
    try:
        return found()
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        raise Unusable(with_traceback(f"{target}() failed", error)) from None


def folder_of(target: str) -> Path:
    """Return the folder of a target's code, to watch for changes."""
    place = target.rpartition(":")[0]
    return Path(place).resolve().parent if place.endswith(".py") else Path.cwd()


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            problem = f"there is no module {name!r} in {Path.cwd()} or in the installed packages"
            raise Unusable(problem) from None
        raise Unusable(with_traceback(f"{name} cannot be imported", error)) from None


def _file(path: Path) -> ModuleType:
    """Import a file as the module that it is, so that its functions can be pickled."""
    path = path.resolve()
    if not path.is_file():
        raise Unusable(f"there is no file {path}")
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    _put_first(folder)
    name = ".".join(names)
    module = _module(name)
    if Path(module.__file__ or "").resolve() != path:
        raise Unusable(
            f"{path} has the name of another module, {name!r} ({module.__file__}): rename the file"
        )
    return module


def _put_first(folder: Path) -> None:
    text = str(folder)
    if text in sys.path:
        sys.path.remove(text)
    sys.path.insert(0, text)


def _as_worker(found: Any, target: str) -> Worker:
    worker = Worker(found) if isinstance(found, _SOURCES) else found
    if not isinstance(worker, Worker):
        raise Unusable(f"{target} returned {_described(worker)}, not a TaskQueue or a Worker")
    try:
        handlers = worker.handlers  # imports the modules with tasks
    except InvalidFlow as error:
        raise Unusable(f"{target}: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        raise Unusable(with_traceback(f"a module with tasks of {target} cannot be imported", error)) from None
    if not handlers:
        raise Unusable(f"{target} has no task or handler: see TaskQueue.task and Worker.handler")
    return worker


def _described(thing: Any) -> str:
    kind, text = type(thing).__name__, repr(thing)
    return f"of type {kind}" if " at 0x" in text else f"{text:.80} ({kind})"


def _suggestion(module: ModuleType) -> str:
    workers = [name for name, value in vars(module).items() if isinstance(value, (Worker, *_SOURCES))]
    return f"; it has {', '.join(workers)}" if workers else ""


def with_traceback(what: str, error: Exception) -> str:
    """Return a message with the error's traceback, from the first line of the user's code."""
    trace = _users_part(error.__traceback__)
    if isinstance(error, LeasequeueError) and trace is None:
        return f"{what}: {error}"
    return f"{what}:\n{traceback_of(error.with_traceback(trace)).rstrip()}"


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this package, of imports and of asyncio at the beginning."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_USER_CODE):
            return trace
        trace = trace.tb_next
    return None
