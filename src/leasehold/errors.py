"""Every error that Leasehold raises.

LeaseholdError
├── InvalidArgument            the caller's mistake; raised before anything is sent
├── QueueClosed                the queue object was closed
├── ServerError                the server, or the way to it
│   ├── ConnectionLost         refused, cut or silent; says whether the step may have been applied
│   ├── ServerRefused          AUTH or ACL
│   ├── ServerReadOnly         a replica, or too few replicas
│   ├── ServerOutOfMemory      `maxmemory` reached
│   ├── ServerBusy             loading its data, or running somebody's long script
│   ├── ServerTooOld           below the support floor
│   ├── WrongKeyType           one of the queue's keys holds something else
│   └── ScriptFailed           anything else that a script was answered with
├── EventsError                the kept events cannot be read
│   ├── NoEventsKept           the queue keeps none
│   └── EventsLost             some that were asked for are kept no more
├── PayloadError               an item's data is not what its handler wants
├── WorkerBusy                 a worker that runs was asked to run
├── TimeLimitExceeded          a run of a handler took longer than it may
├── ExtraMissing               a part is used whose library is not installed
└── EmbeddedServerError        no server program was found, or it did not start

Errors that only Spark raises are in `leasehold.spark`: StreamTakenOver, OutputTakenOver.

EvictionWarning                a warning, not an error: the server may throw away unfinished work
"""

from __future__ import annotations

from typing import ClassVar


class LeaseholdError(Exception):
    """Base of every error of this library. Its errors can be copied and sent between processes.

    Attributes:
        transient: Whether the same call may succeed a little later. The worker and Spark repeat calls that
            failed with such an error, and no others.
    """

    transient: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        # The constructors take facts, not the finished text: build it anew from what it holds.
        return _rebuild, (type(self), self.args, self.__dict__, self.__cause__)


def _rebuild(
    kind: type[LeaseholdError],
    args: tuple[object, ...],
    facts: dict[str, object],
    cause: BaseException | None,
) -> LeaseholdError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    error.__cause__ = cause
    return error


def _repr(given: object) -> str:
    try:
        return repr(given)
    except RecursionError:
        return f"a {type(given).__name__} that is nested too deep to be shown"


class InvalidArgument(LeaseholdError, ValueError):
    """An argument that cannot be used. Nothing was sent and nothing has changed.

    Attributes:
        argument: The name of the argument.
        given: What was passed, shortened for reading.
        allowed: What would have been accepted.
    """

    def __init__(self, argument: str, given: object, allowed: str) -> None:
        if isinstance(given, (str, bytes, bytearray)) and len(given) > 80:
            shown = f"{given[:50]!r}… (length {len(given)})"
        elif len(shown := _repr(given)) > 80:
            shown = f"{shown[:60]}… ({len(shown)} characters)"
        self.argument = argument
        self.given = shown
        self.allowed = allowed
        super().__init__(f"{argument}: got {shown}, expected {allowed}")


class QueueClosed(LeaseholdError):
    """The queue object was closed; open a new one to go on. Nothing was sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the queue {name!r} is closed: create a new AsyncWorkQueue to go on")


class ServerError(LeaseholdError):
    """The server, or the connection to it, did not do what was asked."""


class ConnectionLost(ServerError):
    """The server could not be reached, or went away before it answered.

    Attributes:
        maybe_applied: Whether the step may have happened on the server all the same. False means
            that it certainly has not.
    """

    transient = True

    def __init__(self, detail: str, *, maybe_applied: bool) -> None:
        self.maybe_applied = maybe_applied
        if maybe_applied:
            advice = (
                "the step may have been applied. Repeating is safe: add_item answers False if the "
                "first one arrived, complete answers False if the first one counted, and an item "
                "leased by a lost call comes back when its lease ends"
            )
        else:
            advice = "nothing was applied; repeat when the server is back"
        super().__init__(f"{detail.rstrip('.')}: {advice}")


class ServerRefused(ServerError):
    """The server asks for a login, or its access rules forbid a command (NOAUTH, WRONGPASS, NOPERM)."""


class ServerReadOnly(ServerError):
    """The server takes no writes: it is a replica, or has too few replicas. Nothing was applied."""

    transient = True


class ServerOutOfMemory(ServerError):
    """The server has reached its `maxmemory`. Nothing was applied; leasing and completing still work."""

    transient = True


class ServerBusy(ServerError):
    """The server is loading its data or runs somebody's long script. Nothing was applied; try again."""

    transient = True


class ServerTooOld(ServerError):
    """The server is older than Redis 6.2 or Valkey 7.2, the oldest that have what the scripts need."""


class WrongKeyType(ServerError):
    """A key of this queue holds a value of another type: somebody else uses the name. Nothing was applied."""


class ScriptFailed(ServerError):
    """A script was answered with an error that has no class of its own; the text is the server's."""


class EventsError(LeaseholdError):
    """The kept events of a queue cannot be read."""


class NoEventsKept(EventsError):
    """The queue keeps no events. Nobody has said `await queue.events.keep(…)`, or somebody `stop`."""

    def __init__(self) -> None:
        super().__init__("this queue keeps no events: call `await queue.events.keep(count=…)` first")


class EventsLost(EventsError):
    """Events that were asked for are kept no more. Keep more of them, or read them sooner.

    Attributes:
        after: The number after which they were asked for.
        first_kept: The number of the oldest that is still there, or of the next that there will be. If it is
            not above `after`, the server has lost its last writes, in a fail-over or a crash.
    """

    def __init__(self, after: int, first_kept: int, advice: str | None = None) -> None:
        self.after = after
        self.first_kept = first_kept
        if first_kept > after:
            told = f"the events {after + 1} to {first_kept - 1} are kept no more"
            usual = f"read on with since={first_kept - 1}, and keep more of them or read sooner"
        else:
            told = (
                f"event {after} was read, but the server has lost its last writes and gives out the numbers "
                f"from {first_kept} on again"
            )
            usual = f"read on with since={first_kept - 1}"
        super().__init__(f"{told}: {advice or usual}")


class PayloadError(LeaseholdError):
    """An item's data is not what its handler wants. The item becomes a dead letter at once.

    Attributes:
        item_id: The item's id.
        wanted: The type that the handler's parameter asks for.
        problem: What the parser said.
    """

    def __init__(self, item_id: str, wanted: str, problem: str) -> None:
        self.item_id = item_id
        self.wanted = wanted
        self.problem = problem
        super().__init__(f"the data of item {item_id!r} is no {wanted}: {problem}")


class TimeLimitExceeded(LeaseholdError):
    """A run of a handler took longer than its `timeout`. It counts as a failed attempt.

    Attributes:
        seconds: The limit.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the run took longer than its limit of {seconds:g} s")


class WorkerBusy(LeaseholdError):
    """A worker that runs already was asked to run. Wait for the end, or make a second worker."""

    def __init__(self) -> None:
        super().__init__("this worker runs already: stop it first, or make a second Worker")


class ExtraMissing(LeaseholdError, ImportError):
    """A part of Leasehold is used that needs a library which is not installed.

    Attributes:
        extra: What to install: `pip install leasehold[<extra>]`.
    """

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f"{what} need a library that is not installed: pip install leasehold[{extra}]")


class EmbeddedServerError(LeaseholdError):
    """No server program was found on this machine, or the one that was found did not start."""


class EvictionWarning(UserWarning):
    """The server's `maxmemory-policy` may evict keys of unfinished work. Set it to `noeviction`."""
