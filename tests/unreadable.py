"""Exceptions whose classes break what is usually done with an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.worker import Reject, Retry

if TYPE_CHECKING:
    from collections.abc import Callable


class Escape(BaseException):
    """What `except Exception` lets through, as SystemExit; but pytest can show an object that raises it."""


class Delegating(Exception):
    """`__getattr__` calls itself for ever, as after unpickling without `__init__`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Silent(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Exiting(Exception):
    """Its text raises what is no `Exception`."""

    def __str__(self) -> str:
        raise Escape(9)

    __repr__ = __str__


class Numeric(Exception):
    """Its text is no text."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - that is the point

    __repr__ = __str__


class Untrue(Exception):
    """Its truth and its equality raise, and it cannot be hashed."""

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    __hash__ = None  # type: ignore[assignment]  # as above


class Unset(Retry):
    """A signal that never called the constructor of its base."""

    def __init__(self) -> None:
        Exception.__init__(self, "unset")


class Odd(Retry):
    """A signal whose delay is no duration."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.delay = "soon"  # type: ignore[assignment]  # as above


class SilentReject(Reject):
    """A signal whose text raises."""

    def __init__(self) -> None:
        super().__init__("silent")

    def __str__(self) -> str:
        raise Escape(9)


def _looped() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _nested() -> Exception:
    error: Exception = ValueError("x")
    for _ in range(5000):
        error = ExceptionGroup("group", [error])
    return error


#: What makes each exception.
UNREADABLE: dict[str, Callable[[], Exception]] = {
    **{one.__qualname__: one for one in (Delegating, Silent, Exiting, Numeric, Untrue)},
    "a loop of causes": _looped,
    "nested groups": _nested,
    "a group of it": lambda: ExceptionGroup("group", [Delegating(), Exiting()]),
}
SIGNALS: dict[str, Callable[[], Exception]] = {one.__qualname__: one for one in (Unset, Odd, SilentReject)}


def raise_named(name: str) -> None:
    """Raise one of these, if it is one, as a handler in another process."""
    if make := (UNREADABLE | SIGNALS).get(name):
        error = make()
        raise error
