"""What `TaskQueue.task` returns when it is called with options, as type checkers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leasequeue.tasks.task import AsyncTask, BatchTask, PlainTask

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskDecorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # an async function is also one that returns a coroutine
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class BatchDecorator(Protocol):
    """Makes a task of a function that takes a list."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], Coroutine[Any, Any, None]], /
    ) -> BatchTask[Concatenate[T, P], None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], Coroutine[Any, Any, Sequence[R | Exception]]], /
    ) -> BatchTask[Concatenate[T, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], None], /
    ) -> BatchTask[Concatenate[T, P], None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], Sequence[R | Exception]], /
    ) -> BatchTask[Concatenate[T, P], R]: ...
