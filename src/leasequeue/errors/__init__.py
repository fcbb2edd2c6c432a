"""Every error that Leasequeue raises.

LeasequeueError
├── InvalidArgument            an argument cannot be used; raised before anything is sent
│   ├── InvalidTask            a function cannot be a task; raised when it is registered
│   ├── InvalidCall            the arguments of a call do not fit the task
│   ├── InvalidFanOut          a function fans out to what cannot be children
│   ├── InvalidFlow            the stages of a flow do not form a graph that can run
│   ├── UnknownAttribute       a flow has no attribute of this name
│   └── UnknownSignal          no stage of a flow run waits for a signal of this name
├── QueueClosed                the queue object is closed
├── ServerError                the server, or the connection to it
│   ├── ConnectionLost         refused, cut or silent; says whether the call may have been applied
│   │   └── TooManyConnections `maxclients` of the server is reached
│   ├── NotReplicated          applied, but not yet on as many replicas as the queue asks for
│   ├── ServerRefused          the server refuses this client; waiting does not help
│   │   ├── LoginRefused       the user or the password is missing or wrong
│   │   ├── AccessDenied       the access rules forbid a command, a key or a channel
│   │   ├── DatabaseMissing    the server has no database of this number
│   │   ├── FormatTooNew       a newer version writes the queue in a format that this one does not know
│   │   └── TlsFailed          a certificate is not accepted, or only one side uses TLS
│   ├── PartlyApplied          some shards of a queue have applied their part of a call, others not
│   ├── ServerReadOnly         a replica, or too few replicas
│   ├── ServerOutOfMemory      `maxmemory` is reached, or its process gets no more memory
│   ├── ServerBusy             loading its data, or running a long script
│   ├── ServerTooOld           older than Redis 6.2 or Valkey 7.2
│   ├── LimitExceeded          more than a script accepts in one call
│   ├── QueueDeleted           the queue is being deleted, so nothing can be added
│   ├── WrongKeyType           one of the queue's keys holds another type of value
│   └── ScriptFailed           any other error of a script
├── ProcessOutOfMemory         this process has no memory left to send a call
├── EventsError                the events of a queue cannot be read
│   ├── NoEventsKept           the queue keeps none
│   ├── NoEventsPublished      the queue publishes none
│   └── EventsLost             some of the requested events are no longer kept, or were missed
├── JobFailed                  the item, job or flow run that a caller waits for has failed
├── JobCancelled               it was cancelled
├── JobExpired                 no worker has begun with it in time
├── JobUnknown                 there is neither an item, job or flow run of this id nor a result
├── FlowError                  base of the errors of flows
│   ├── FlowRunEnded           the flow run has ended, so it takes no signal
│   ├── FlowRunUnfinished      the flow run has not ended yet
│   ├── NotAStage              a function for stages was called outside of one
│   ├── QueueNotDeclared       a flow run would add an item to a queue that its worker does not declare
│   └── ResultMismatch         the result of a stage does not fit its type, or what may follow it
├── LeaseLost                  the lease was lost, so what it permits was refused
├── HoldLost                   a place of a limit was lost while a block held it
├── StreamFull                 the stream of an item has no room for what a run emits
├── PayloadError               an item's data does not fit its handler
├── UnreadablePayload          a payload was encoded by a codec or a key that this queue object has not
├── ResultError                the work was done, but its result cannot be written or read
├── WorkerBusy                 the worker is already running
├── WorkerNotRunning           a queue of the worker was started or stopped while it does not run
├── WorkerUnknown              no worker of this name or session is registered
├── InsideEventLoop            `call_sync` was called where `await` is right
├── TimeLimitExceeded          a run of a handler took longer than its `timeout`
├── NoCurrentRun               `current_run` was called outside of a run
├── ExtraMissing               an optional library is not installed
├── EmbeddedServerError        no server program was found, or it did not start
├── InvalidConfig              the configuration of the autoscaler cannot be used
└── BackendError               a back end of the autoscaler could not answer, or do what it was asked

Errors that only Spark raises are in `leasequeue.spark`: StreamTakenOver, OutputTakenOver,
QueryStopped; the one of applications with FastAPI is in `leasequeue.fastapi`: DependencyMissing.

EvictionWarning                a warning, not an error: the server may evict keys of unfinished items
"""

from __future__ import annotations

import copy
import itertools
import re
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from leasequeue.errors.describing import indented, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "AccessDenied",
    "BackendError",
    "ConnectionLost",
    "DatabaseMissing",
    "EmbeddedServerError",
    "EventsError",
    "EventsLost",
    "EvictionWarning",
    "ExtraMissing",
    "FlowError",
    "FlowRunEnded",
    "FlowRunUnfinished",
    "FormatTooNew",
    "HoldLost",
    "InsideEventLoop",
    "InvalidArgument",
    "InvalidCall",
    "InvalidConfig",
    "InvalidFanOut",
    "InvalidFlow",
    "InvalidTask",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobUnknown",
    "LeaseLost",
    "LeasequeueError",
    "LimitExceeded",
    "LoginRefused",
    "NoCurrentRun",
    "NoEventsKept",
    "NoEventsPublished",
    "NotAStage",
    "NotReplicated",
    "PartlyApplied",
    "PayloadError",
    "ProcessOutOfMemory",
    "QueueClosed",
    "QueueDeleted",
    "QueueNotDeclared",
    "ResultError",
    "ResultMismatch",
    "ScriptFailed",
    "ServerBusy",
    "ServerError",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "StreamFull",
    "TimeLimitExceeded",
    "TlsFailed",
    "TooManyConnections",
    "UnknownAttribute",
    "UnknownSignal",
    "UnreadablePayload",
    "WorkerBusy",
    "WorkerNotRunning",
    "WorkerUnknown",
    "WrongKeyType",
]

#: Why no encrypted connection can be made; see `TlsFailed`.
TlsReason: TypeAlias = Literal[
    "server certificate", "client certificate", "files", "plain port", "TLS port", "protocol"
]
_TLS_ADVICE: dict[TlsReason, str] = {
    "server certificate": "the server's certificate is not accepted. Name the file of its authority with "
    "ssl_ca_certs, and connect to a host name that the certificate is for",
    "client certificate": "the server asks for a client certificate, or does not accept this one. Name its "
    "files with ssl_certfile and ssl_keyfile",
    "files": "the files of ssl_ca_certs, ssl_certfile and ssl_keyfile cannot be used. Check their paths, and "
    "that key and certificate belong together",
    "plain port": "the server does not use TLS at this port. Write redis:// instead of rediss://, or use its "
    "TLS port",
    "TLS port": "the server expects TLS at this port. Write rediss:// instead of redis://",
    "protocol": "the server and this client have no version or cipher of TLS in common. Check "
    "ssl_min_version and ssl_ciphers",
}

TRACEBACK = "Traceback (most recent call last):"
GROUP_TRACEBACK = "+ Exception Group Traceback (most recent call last):"
#: What precedes the traceback of an exception that was raised in a separate process, in a note.
OTHER_PROCESS = "In the other process:\n"
#: What separates the exceptions of a chain.
_CHAINED = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
#: A line of pydantic's errors that says nothing of the error.
_ADVERTISED = re.compile(r"\s*For further information visit https://errors\.pydantic\.dev/")
#: How many lines of a text a summary has.
_SUMMARY_LINES = 7


def copied(error: BaseException | None) -> BaseException:
    """Return a copy of the error of a trip: a shared one would gather the tracebacks of all callers."""
    if error is None:
        return AssertionError("the server's reply is not a list of answers")
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - some exceptions cannot be copied
        return error


class LeasequeueError(Exception):
    """Base of all errors of this library. They can be copied, pickled and sent between processes.

    Attributes:
        transient: Whether the same call may succeed a little later. The worker and Spark repeat calls that
            failed with such an error, and no others.
    """

    transient: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return the text. It may name ids and errors of others, so it is escaped and cut: see `indented`."""
        return indented(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        # The constructors take facts, not the finished text: rebuild it from the attributes.
        return _rebuild, (type(self), self.args, self.__dict__, self.__cause__)


def _rebuild(
    kind: type[LeasequeueError],
    args: tuple[object, ...],
    facts: dict[str, object],
    cause: BaseException | None,
) -> LeasequeueError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    error.__cause__ = cause
    return error


class InvalidArgument(LeasequeueError, ValueError):
    """An argument cannot be used. Nothing was sent and nothing has changed.

    Attributes:
        argument: The name of the argument.
        given: The value that was passed, shortened.
        allowed: The values that are accepted.
    """

    def __init__(self, argument: str, given: object, allowed: str) -> None:
        if isinstance(given, (str, bytes, bytearray)) and len(given) > 80:
            text = f"{given[:50]!r}… (length {len(given)})"
        elif isinstance(given, datetime):
            text = given.isoformat()
        elif len(text := shown(given)) > 80:
            text = f"{text[:60]}… ({len(text)} characters)"
        self.argument = argument
        self.given = text
        self.allowed = allowed
        super().__init__(f"{argument}: got {text}, expected {allowed}")


class InvalidTask(InvalidArgument):
    """A function cannot be a task. Raised when it is registered.

    Attributes:
        task: The name of the task.
        problem: What is wrong, and what to do.
    """

    def __init__(self, task: str, problem: str) -> None:
        super().__init__("function", task, problem)
        self.task = task
        self.problem = problem
        Exception.__init__(self, f"{task} cannot be a task: {problem}")


class InvalidCall(InvalidArgument, TypeError):
    """The arguments of a call do not fit the task's function. Nothing was sent.

    Attributes:
        task: The name of the task.
        problem: What is wrong.
    """

    def __init__(self, task: str, problem: str) -> None:
        super().__init__("arguments", task, problem)
        self.task = task
        self.problem = problem
        Exception.__init__(self, f"{task}: {problem}")


class FlowError(LeasequeueError):
    """Base of the errors of flows and flow runs."""


class InvalidFanOut(InvalidArgument, FlowError):
    """A function fans out to what cannot be children of a stage. The worker tries its item no more.

    Attributes:
        problem: What is wrong.
    """

    def __init__(self, given: object, problem: str) -> None:
        super().__init__("fan_out", given, problem)
        self.problem = problem
        Exception.__init__(self, f"fan_out of {self.given}: {problem}")


class InvalidFlow(InvalidArgument, FlowError):
    """The stages of a flow do not form a graph that can run, or their types do not fit. Nothing was sent.

    Attributes:
        flow: The name of the flow; empty: it has none.
        problem: What is wrong.
    """

    def __init__(self, flow: str, problem: str) -> None:
        super().__init__("flow", flow, problem)
        self.flow = flow
        self.problem = problem
        Exception.__init__(self, f"the flow {flow!r} cannot run: {problem}" if flow else problem)


class UnknownAttribute(InvalidArgument, FlowError):
    """A flow has no attribute of this name, or finds no runs by it. Nothing was sent.

    Attributes:
        flow: The name of the flow.
        name: The name that was given.
        known: The names of its attributes, or of those by which it finds runs.
    """

    def __init__(self, flow: str, name: str, known: Iterable[str], *, found_by: bool = False) -> None:
        self.known = tuple(known)
        names = ", ".join(self.known)
        super().__init__("attribute", name, names or "none, as the flow has no attributes")
        self.flow = flow
        self.name = name
        text = f"has no attribute {name!r}: it has {self.allowed}"
        if found_by:
            text = f"finds no runs by {name!r}: its lookup= has {names or 'no attributes'}"
        Exception.__init__(self, f"the flow {flow!r} {text}")


class UnknownSignal(InvalidArgument, FlowError):
    """No stage of a flow, or of a flow run, waits for a signal of this name. Nothing has changed.

    Attributes:
        name: The name that was given.
        known: The names of its signals.
    """

    def __init__(self, of: str, name: str, known: Iterable[str]) -> None:
        self.known = tuple(known)
        names = ", ".join(self.known) or "none"
        super().__init__("signal", name, names)
        self.name = name
        Exception.__init__(self, f"the {of} waits for no signal {name!r}: its signals are {names}")


class FlowRunEnded(FlowError):
    """The flow run has ended, so no stage of it waits for a signal any more. Nothing has changed.

    Attributes:
        run_id: The id.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"the flow run {run_id!r} has ended: no stage of it waits for a signal any more")


class FlowRunUnfinished(FlowError):
    """The flow run has not ended, and the call is only for runs that have. Nothing has changed.

    Attributes:
        run_id: The id.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"the flow run {run_id!r} has not ended: wait for it, or cancel it first")


class QueueNotDeclared(FlowError):
    """A flow run would add an item to a queue that the worker does not declare for the runs of its home.

    It is the error of the stage, which has failed, and is logged by the worker; nothing raises it.

    Attributes:
        home: The name of the queue that holds the run.
        queue: The name of the queue of the stage.
    """

    def __init__(self, home: str, queue: str) -> None:
        self.home, self.queue = home, queue
        super().__init__(
            f"no flow and no task queue of this worker declares that flow runs of {home!r:.200} may add "
            f"items to {queue!r:.200}: serve the flow, or write "
            f"Worker(…, feeds={{{home!r:.200}: [{queue!r:.200}]}})"
        )


class NotAStage(FlowError):
    """A function for the stages of flow runs was called outside of one.

    Attributes:
        function: The name of the function.
    """

    def __init__(self, function: str, problem: str = "") -> None:
        self.function = function
        super().__init__(
            f"{function} was called "
            + (
                problem
                or "outside of a stage of a flow run, or in a batch, which has several: "
                "call `StageContext.of(lease)` for each of `current_run().leases`"
            )
        )


class ResultMismatch(FlowError):
    """A stage's function returned what does not fit its type, or what cannot follow it. The stage fails.

    Attributes:
        stage: The name of the stage.
        problem: What is wrong.
    """

    def __init__(self, stage: str, problem: str) -> None:
        self.stage = stage
        self.problem = problem
        super().__init__(f"the result of stage {stage!r} cannot be used: {problem}")


class QueueClosed(LeasequeueError):
    """The queue object is closed. Nothing was sent; create a new one."""

    def __init__(self, name: str) -> None:
        #: The name of the queue.
        self.name = name
        super().__init__(f"the queue {name!r} is closed: create a new AsyncWorkQueue")


class ServerError(LeasequeueError):
    """The server, or the connection to it, has failed."""


class ConnectionLost(ServerError):
    """The server could not be reached, or did not answer: the connection was lost, or `reply_timeout` passed.

    Attributes:
        maybe_applied: Whether the server may have applied the call. False: it certainly has not.
    """

    transient = True

    def __init__(self, detail: str, *, maybe_applied: bool) -> None:
        self.maybe_applied = maybe_applied
        if maybe_applied:
            advice = (
                "the call may have been applied. Repeating is safe: add_item and complete return False if "
                "the first call was applied, and an item that was leased by a lost call returns to the queue "
                "when its lease expires"
            )
        else:
            advice = "nothing was applied; repeat when the server is back"
        super().__init__(f"{detail.rstrip('.')}: {advice}")


class TooManyConnections(ConnectionLost):
    """The server has as many connections as its `maxclients` permits. Nothing was applied.

    Connections that are open go on. A worker keeps trying, and works when there is room. Over TLS the server
    closes the connection without a reason, which is a plain `ConnectionLost`.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"{detail}: the server has reached its `maxclients`. Raise that (10,000 unless it is set), or "
            "run fewer processes: a worker that serves n queues has n + 3 connections",
            maybe_applied=False,
        )


class NotReplicated(ServerError):
    """A call was applied on the server, but fewer replicas than the queue's `replicas` have it yet.

    Until they have it, a fail-over may undo it. Repeat the call: it waits for the replicas again, also if it
    changes nothing more. `add_item` then returns False, as the id is taken, and so does `complete`, as the
    item is completed: what the first call would have returned is in `answers`.

    Attributes:
        answers: For each item of the call, whether it was added, or its completion was accepted.
        replicas: How many replicas are to have it.
        confirmed: How many have said in time that they have it.
        connected: How many replicas the server has; None: it does not say.
        maybe_applied: Always True, as in `ConnectionLost`; here it is certain.
    """

    transient = True
    maybe_applied: ClassVar[bool] = True

    def __init__(
        self, answers: Iterable[bool], *, replicas: int, confirmed: int, connected: int | None, waited: float
    ) -> None:
        self.answers = tuple(answers)
        self.replicas, self.confirmed, self.connected = replicas, confirmed, connected
        missing = replicas - confirmed
        text = f"applied here, not yet on {missing} replica{'s' * (missing > 1)}: "
        text += f"{confirmed} of {replicas} confirmed it within {waited:g} s"
        if connected is not None and connected < replicas:
            has = f"{connected or 'no'} replica{'s' * (connected != 1)}"
            text += (
                f", and the server has {has} now: connect more, or make the queue with a smaller `replicas`"
            )
        super().__init__(
            f"{text}. Until then a fail-over may undo it. Repeat the call: it waits again, and changes "
            "nothing that is done already; what the first call has done is in `answers`"
        )


class ServerRefused(ServerError):
    """The server refuses this client. Waiting does not help: its settings, or the server's, must change.

    A worker that is refused when it starts raises it. One that is refused later keeps trying. The class
    itself is raised by a client for a cluster on a single server, and by one for a single server on a
    cluster.
    """


class LoginRefused(ServerRefused):
    """The user or the password is missing or wrong, also of a Sentinel. Nothing was applied."""


class AccessDenied(ServerRefused):
    """The access rules of the server forbid a command, a key or a channel (NOPERM), or it lacks a command.

    The text has the rule that permits it; `leasequeue acl` prints all that a user needs. There is none for a
    command that the server does not have, or that its provider has taken away.

    Attributes:
        commands: The names of the forbidden commands, in capitals, if the server says which.
        keys: The names of the forbidden keys, if the server says which.
        channels: The names of the forbidden channels, if the server says which.
    """

    def __init__(
        self,
        text: str,
        *,
        commands: Iterable[str] = (),
        keys: Iterable[str] = (),
        channels: Iterable[str] = (),
    ) -> None:
        self.commands = tuple(commands)
        self.keys = tuple(keys)
        self.channels = tuple(channels)
        super().__init__(text)


class DatabaseMissing(ServerRefused):
    """The server has no database of the number that the URL or the client names. Nothing was applied."""


class FormatTooNew(ServerRefused):
    """A newer version of Leasequeue writes the queue in a format that this one does not know.

    Nothing was applied. What a worker holds at this time returns to the queue as its leases expire. The stage
    of a flow run that leads to such a queue is released for a newer worker.

    Attributes:
        queue: The name of the queue, or of its shard.
        format: The format that a program must know to use the queue.
        since: The version of Leasequeue that has set it.
        known: The newest format that this version knows.
        version: This version of Leasequeue.
        answers: Of a call for several stages of flow runs, whether each was accepted; None: it leads there.
    """

    answers: Sequence[bool | None] = ()

    def __init__(self, queue: str, needed: int, since: str, *, known: int, version: str) -> None:
        self.queue, self.format, self.since = queue, needed, since
        self.known, self.version = known, version
        super().__init__(
            f"the queue {queue!r:.200} has format {needed}, set by leasequeue {since}. This is leasequeue "
            f"{version}, which knows no format above {known}; nothing was applied. Install leasequeue "
            f"{since} or newer here"
        )


class TlsFailed(ServerRefused):
    """No encrypted connection can be made. Nothing was applied.

    Attributes:
        reason: What is wrong: `"server certificate"`, `"client certificate"` and `"files"` (those of the
            certificates cannot be used), `"plain port"` and `"TLS port"` (only one side uses TLS), or
            `"protocol"` (no common version or cipher).
    """

    def __init__(self, reason: TlsReason, detail: str) -> None:
        self.reason = reason
        super().__init__(f"{_TLS_ADVICE[reason]}; nothing was applied ({detail.strip().rstrip('.')})")


class PartlyApplied(ServerError):
    """Some shards of a queue have applied their part of a call, and others have failed.

    Attributes:
        answers: What the call would have returned for each of its arguments; None where it may have failed.
        replicated: False if other shards have raised NotReplicated: replicas may lack what was applied.
    """

    transient = True

    def __init__(self, answers: Sequence[object], *, replicated: bool = True) -> None:
        self.answers = (*answers,)
        self.replicated = replicated
        missing = sum(one is None for one in self.answers)
        super().__init__(
            f"{len(self.answers) - missing} of {len(self.answers)} were applied; the other {missing} may not "
            "have been, as their shards have failed: `answers` has None for them. Repeating is safe"
        )


class ServerReadOnly(ServerError):
    """The server accepts no writes: a replica, too few replicas, or no disk. Nothing was applied."""

    transient = True


class ServerOutOfMemory(ServerError):
    """The server has reached its `maxmemory`. Nothing was applied; leasing and completing still work.

    Or its process gets no more memory of its machine while a script runs. Then the call may have been applied
    in part, which repeating it completes.
    """

    transient = True


class ServerBusy(ServerError):
    """The server is loading its data, running a long script, or moving the queue to another node.

    Nothing was applied; try again. A fail-over may have ended a wait, or the move of a slot of a cluster may
    have taken longer than `reply_timeout`.
    """

    transient = True


class ServerTooOld(ServerError):
    """The server is older than Redis 6.2 or Valkey 7.2, the oldest supported versions."""


class LimitExceeded(ServerError):
    """A script was given more rows than it accepts in one call. Nothing was applied; split the call."""


class QueueDeleted(ServerError):
    """The queue is being deleted, so nothing is added to it. Nothing was applied.

    When the deletion has ended, the name can be used again. If it was interrupted, `QueueAdmin.delete`
    finishes it.
    """


class WrongKeyType(ServerError):
    """A key of this queue holds a value of another type: another program uses it. Nothing was applied."""


class ScriptFailed(ServerError):
    """A script failed with an error that no other class describes; the text is the server's.

    It names the script, and the file and line of `lua/`.
    """


class ProcessOutOfMemory(LeasequeueError, MemoryError):
    """This process has no memory left to send a call. Nothing was applied.

    Attributes:
        size: The size of the call, in bytes.
    """

    transient = True

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(
            f"this process has no memory left to send a call of {size:,} bytes; nothing was applied. Add and "
            "complete less at once, run fewer items at once, or give the process more memory"
        )


class EventsError(LeasequeueError):
    """The events of a queue cannot be read."""


class NoEventsKept(EventsError):
    """The queue keeps no events: `queue.events.keep` was not called, or `queue.events.stop` was."""

    def __init__(self) -> None:
        super().__init__("this queue keeps no events: call `await queue.events.keep(count=…)` first")


class NoEventsPublished(EventsError):
    """The queue publishes no events: `queue.events.publish` was not called, or `queue.events.stop` was."""

    def __init__(self) -> None:
        super().__init__("this queue publishes no events: call `await queue.events.publish()` first")


class EventsLost(EventsError):
    """Some of the requested events are no longer kept, or were missed. Keep more, or read them sooner.

    Attributes:
        after: The number after which they were requested.
        first_kept: The number of the oldest event that is kept, or, if none is, of the next one. If it is not
            above `after`, the server has lost its last writes, in a fail-over or a crash.
        cursor: What to continue with as `since`, after what is lost.
        advice: What the message says to do, if it is not the usual; else None.
    """

    def __init__(
        self, after: int, first_kept: int, advice: str | None = None, *, cursor: str | None = None
    ) -> None:
        self.after = after
        self.first_kept = first_kept
        self.cursor = str(first_kept - 1) if cursor is None else cursor
        since = self.cursor if cursor is None else repr(cursor)
        self.advice = advice
        if first_kept > after:
            loss = f"the events {after + 1} to {first_kept - 1} are no longer kept"
            usual = f"continue with since={since}, and keep more of them or read sooner"
        else:
            loss = (
                f"event {after} was read, but the server has lost its last writes and uses the numbers "
                f"from {first_kept} on again"
            )
            usual = f"continue with since={since}"
        super().__init__(f"{loss}: {advice or usual}")


class JobFailed(LeasequeueError):
    """What a caller waits for has failed, and is not retried: an item, a job or a flow run.

    The item is a dead letter, the result of the job is an error, or a stage of the flow run has failed and
    nothing tolerates it.

    Attributes:
        item_id: The item's id, which is that of its job; of a flow run the run's.
        error: The error of the last attempt, such as a traceback.
        type: The name of the error's class; empty if it is not known.
        message: The error's text.
        stage: Of a flow run the path of the stage that has failed first, empty if it is not known; otherwise
            None.
    """

    def __init__(self, item_id: str, error: str, *, stage: str | None = None) -> None:
        self.item_id = item_id
        self.error = error
        self.type, self.message = _read_error(error)
        self.stage = stage
        what = repr(item_id) if stage is None else f"the flow run {item_id!r}"
        at = f" at stage {stage!r}" if stage else ""
        text = f"{self.type}: {self.message}" if self.type else summary_of(error) or "without an error"
        super().__init__(f"{what} has failed{at}: {text}")


class JobCancelled(LeasequeueError):
    """What a caller waits for was cancelled: an item, a job or a flow run.

    Attributes:
        item_id: The item's id, which is that of its job; of a flow run the run's.
    """

    def __init__(self, item_id: str) -> None:
        self.item_id = item_id
        super().__init__(f"{item_id!r} was cancelled")


class JobExpired(LeasequeueError):
    """The item or the job that a caller waits for has expired: no worker had begun with it (`expires_in`).

    Attributes:
        item_id: The item's id, which is that of its job.
    """

    def __init__(self, item_id: str) -> None:
        self.item_id = item_id
        super().__init__(f"{item_id!r} has expired: no worker had begun with it in time")


class JobUnknown(LeasequeueError):
    """There is no item, job or flow run of this id, nor a result of one.

    Attributes:
        item_id: The id.
    """

    def __init__(self, item_id: str, *, is_flow_run: bool = False) -> None:
        self.item_id = item_id
        text = (
            f"there is no flow run {item_id!r}: it was never started, was deleted, or has ended and its "
            "`keep` has passed"
            if is_flow_run
            else f"there is neither an item {item_id!r} nor a result: it was never added, was completed "
            "without a result, or the result has expired (`keep_result` says how long it is kept)"
        )
        super().__init__(text)


def _read_error(error: str) -> tuple[str, str]:
    """Return the class and the text of an error as it is kept: of an exception, the last one of its chain."""
    text = error.strip()
    if text.startswith((TRACEBACK, GROUP_TRACEBACK)):
        last = _CHAINED.split(text.rpartition(OTHER_PROCESS)[2])[-1].strip()
        lines = last.splitlines()[1:]
        if last.startswith(GROUP_TRACEBACK):
            # Without the exceptions in the group, which are indented further.
            lines = [line.removeprefix("  | ") for line in lines if line.startswith("  | ")]
        # What follows the frames, which are indented.
        text = "\n".join(itertools.dropwhile(lambda line: line[:1].isspace(), lines)) or text
    name, _, message = text.partition(": ")
    if name.replace(".", "").isidentifier():
        return name, message
    return "", text


def summary_of(error: str) -> str:
    """Return an error as it is kept in one line: `ValidationError: 1 validation error for Order; total: …`.

    That is the class and the text of an exception, or else the first line; of a traceback of another form,
    the last line that is not indented.
    """
    name, message = _read_error(error)
    lines = [line for line in message.splitlines() if line.strip() and not _ADVERTISED.match(line)]
    if not name:
        if error.lstrip().startswith("Traceback"):
            lines = [line for line in reversed(lines) if not line[0].isspace()]
        return "".join(lines[:1]).strip()
    summary = name.rpartition(".")[2] if name.startswith("pydantic") else name
    indent = -1
    for line in lines[:_SUMMARY_LINES]:
        deeper = indent < (indent := len(line) - len(line.lstrip()))
        summary += f"{': ' if deeper else '; '}{line.strip()}"
    return summary + " …" * (len(lines) > _SUMMARY_LINES)


class LeaseLost(LeasequeueError):
    """The lease was lost: it has expired, or the item has ended. What it permits was refused.

    Attributes:
        item_id: The item's id.
        token: The token of the lease.
    """

    def __init__(self, item_id: str, token: int) -> None:
        self.item_id = item_id
        self.token = token
        super().__init__(f"the lease {token} of the item {item_id!r} was lost: nothing was stored")


class HoldLost(LeasequeueError):
    """The place of a limit was lost, so another caller may have it: the server did not answer for too long.

    Attributes:
        name: The name of the limit.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the place of the limit {name!r} was not renewed in time, and the block cancelled")


class PayloadError(LeasequeueError):
    """An item's data does not fit its handler's parameter. The item becomes a dead letter at once.

    Attributes:
        item_id: The item's id.
        wanted: The type of the handler's parameter.
        problem: The message of the parser.
    """

    def __init__(self, item_id: str, wanted: str, problem: str) -> None:
        self.item_id = item_id
        self.wanted = wanted
        self.problem = problem
        super().__init__(f"the data of item {item_id!r} is not a {wanted}: {problem}")


class UnreadablePayload(LeasequeueError):
    """The data of an item, a result or a chunk was encoded, and cannot be decoded here.

    An item that was leased has been released for others with a delay, which is no attempt.

    Attributes:
        item_id: The item's id.
        codec: The name in the envelope, such as `zstd` or `aes.2026-11`; None: it has none.
        problem: Why.
    """

    def __init__(self, item_id: str, codec: str | None, problem: str) -> None:
        self.item_id = item_id
        self.codec = codec
        self.problem = problem
        by = f", encoded by {codec!r}," if codec else ""
        super().__init__(f"a payload of {item_id!r}{by} cannot be read: {problem}")


class ResultError(LeasequeueError):
    """The work on an item was done, but its result cannot be written or read.

    Attributes:
        item_id: The item's id, which is that of the job.
        problem: Why.
    """

    def __init__(self, item_id: str, problem: str) -> None:
        self.item_id = item_id
        self.problem = problem
        super().__init__(f"{item_id!r} was completed, but {problem}")


class StreamFull(LeasequeueError):
    """The stream of an item has no room for a chunk: its run has emitted as much as it may.

    Attributes:
        item_id: The item's id, which is that of its job.
        max_bytes: How many bytes its stream may have.
    """

    def __init__(self, item_id: str, max_bytes: int) -> None:
        self.item_id = item_id
        self.max_bytes = max_bytes
        super().__init__(
            f"the run of {item_id!r} has emitted {max_bytes} bytes, each chunk counted with 32 more: emit "
            "less, or fewer and larger chunks, or give its task a larger `max_stream`"
        )


class TimeLimitExceeded(LeasequeueError):
    """A run of a handler took longer than its `timeout`. It counts as a failed attempt.

    Attributes:
        seconds: The limit.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the run took longer than its limit of {seconds:g} s")


class NoCurrentRun(LeasequeueError):
    """`current_run` was called outside of a run, or in the separate process of a handler."""

    def __init__(self) -> None:
        super().__init__(
            "no run calls this code: current_run() is for handlers, tasks and what they call, in the event "
            "loop and in threads; pass values to code that runs elsewhere"
        )


class WorkerBusy(LeasequeueError):
    """The worker is already running. Stop it first, or create a second one."""

    def __init__(self) -> None:
        super().__init__("this worker is already running: stop it first, or create a second Worker")


class WorkerNotRunning(LeasequeueError):
    """A queue of a worker was to be started or stopped, and the worker does not run."""

    def __init__(self) -> None:
        super().__init__("this worker is not running: its queues are started and stopped while it runs")


class WorkerUnknown(LeasequeueError):
    """No worker of this name or session is registered: it has stopped, or was failed.

    Attributes:
        worker: The name or the session.
    """

    def __init__(self, worker: str) -> None:
        self.worker = worker
        super().__init__(f"no worker {shown(worker)} is registered: see `Fleet.workers`")


class InsideEventLoop(LeasequeueError, RuntimeError):
    """`call_sync` was called in a thread that runs an event loop, which it would block. Nothing was sent.

    Attributes:
        function: The name of the function that was to be called.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        short = function.rpartition(".")[2]
        super().__init__(
            f"call_sync({short}, …) would block the running event loop: write `await {short}(…)` instead"
        )


class ExtraMissing(LeasequeueError, ImportError):
    """A feature was used whose library is not installed.

    Attributes:
        what: The feature.
        extra: The extra to install: `pip install "leasequeue[<extra>]"`.
    """

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f'{what} need a library that is not installed: pip install "leasequeue[{extra}]"')


class EmbeddedServerError(LeasequeueError):
    """No server program was found on this machine, or the one that was found did not start."""


class InvalidConfig(LeasequeueError, ValueError):
    """The configuration of the autoscaler cannot be used. Nothing was started.

    Attributes:
        path: The file.
        place: Where in it, as `deployments.gpu.tiers[1].max_units`; empty: the whole file.
        problem: What is wrong there.
        expected: What is accepted there; empty: the problem says it.
    """

    def __init__(self, path: object, place: str, problem: str, expected: str = "") -> None:
        self.path = str(path)
        self.place = place
        self.problem = problem
        self.expected = expected
        where = ", ".join(filter(None, (self.path, place)))
        wanted = f"; expected {expected}" if expected else ""
        super().__init__(f"{where}: {problem}{wanted}")


class BackendError(LeasequeueError):
    """A back end of the autoscaler could not answer, or could not do what it was asked.

    Attributes:
        backend: The kind of back end: `"kubernetes"`.
        target: What it was asked about: the deployment and the tier, `"media/spot"`.
        problem: What went wrong.
    """

    def __init__(self, backend: str, target: str, problem: str) -> None:
        self.backend = backend
        self.target = target
        self.problem = problem
        super().__init__(f"{backend}, {target}: {problem}")


class EvictionWarning(UserWarning):
    """The server's `maxmemory-policy` may evict keys of unfinished work. Set it to `noeviction`."""
