"""How a task is written: as the data of an item, and as a result.

Data: `{"task": name, "args": {…by name…}, "meta": {…}}`. A result: `{"result": value}`, or
`{"error": {"type": …, "message": …}}`. In `meta`, `at` is when the task was to run first, in ms since 1970,
`correlation` an id for logs and traces, and `needs` says what a stage of a flow run takes from the run: a
`Need` by the name of its argument.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.errors import JobFailed, ResultError
from leasequeue.errors.describing import text_of
from leasequeue.item import MAX_DATA_BYTES, codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasequeue.queue.plans.plan import Need


class _Heading(msgspec.Struct):
    task: str


class _CallText(msgspec.Struct):
    task: str
    args: msgspec.Raw


class _CallMeta(msgspec.Struct):
    at: int | None = None
    correlation: Any = None


class _CallWithMeta(msgspec.Struct):
    meta: _CallMeta


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Result(msgspec.Struct):
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: _Error | None = None


_HEADING = msgspec.json.Decoder(_Heading)
_CALL = msgspec.json.Decoder(_CallText)
_WITH_META = msgspec.json.Decoder(_CallWithMeta)
_RESULT = msgspec.json.Decoder(_Result)


def data_of(
    task: str,
    arguments: bytes,
    at_ms: int | None,
    *,
    needs: Mapping[str, Need] | None = None,
    correlation: str | None = None,
) -> bytes:
    """Return the data of an item.

    Args:
        task: The name of the task.
        arguments: A JSON object.
        at_ms: When the task is to run first, in ms since 1970; None: it is not said, as for a schedule.
        needs: What its other arguments take from a flow run, by name.
        correlation: An id for logs and traces; None: it has none, or that of its flow run.
    """
    meta: dict[str, Any] = {} if at_ms is None else {"at": at_ms}
    if needs:
        meta["needs"] = needs
    if correlation is not None:
        meta["correlation"] = correlation
    return b'{"task":%b,"args":%b,"meta":%b}' % (codec.encode(task), arguments, codec.encode(meta))


def content_id_of(task: str, arguments: bytes) -> str:
    """Return the id of a call that has the same one as each equal call."""
    return hashlib.sha256(b'{"task":%b,"args":%b}' % (codec.encode(task), arguments)).hexdigest()


def task_of(data: bytes) -> str | None:
    """Return the name of the task that an item is for; None if its data is not that of a task."""
    try:
        return _HEADING.decode(data).task
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def call_of(data: bytes) -> tuple[str, str] | None:
    """Return the name of a task and its arguments in JSON, to be shown; None if this is no task."""
    try:
        call = _CALL.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return call.task, bytes(call.args).decode(errors="replace")


def first_due_of(data: bytes) -> float | None:
    """Return when a task was to run first, in seconds since 1970; None if its data does not say that."""
    try:
        at_ms = _WITH_META.decode(data).meta.at
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if at_ms is None else at_ms / 1000


def correlation_of(data: bytes) -> str | None:
    """Return the correlation id of a task; None if its data has none."""
    if b'"correlation"' not in data:  # most have none, and this is asked before each run
        return None
    try:
        found = _WITH_META.decode(data).meta.correlation
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def write_result(value: Any) -> bytes:
    """Return the result of a task that has returned a value."""
    result = b'{"result":%b}' % codec.encode(value)
    if len(result) > MAX_DATA_BYTES:
        raise ValueError(f"it is {len(result)} bytes long; the maximum is {MAX_DATA_BYTES}")
    return result


def read_result(item_id: str, data: bytes, decode: Callable[[bytes], Any]) -> Any:
    """Return the value in a result.

    Raises:
        JobFailed: If the result is an error.
        ResultError: If it cannot be read, or the worker could not write it.
    """
    raw = raw_result(item_id, data)
    if raw is None:
        raise ResultError(item_id, "its result has neither a value nor an error")
    try:
        return decode(raw)
    except Exception as error:
        raise ResultError(item_id, f"its result cannot be read: {text_of(error)}") from error


def raw_result(item_id: str, data: bytes) -> bytes | None:
    """Return the JSON of the value in a result; None: it has none.

    Raises:
        JobFailed: If the result is an error.
        ResultError: If it cannot be read, or the worker could not write it.
    """
    try:
        result = _RESULT.decode(data)
    except Exception as error:
        raise ResultError(item_id, f"its result cannot be read: {text_of(error)}") from error
    if result.error is None:
        return None if result.result is msgspec.UNSET else bytes(result.result)
    kind, message = result.error.type, result.error.message
    if kind == ResultError.__name__:
        raise ResultError(item_id, message)
    raise JobFailed(item_id, f"{kind}: {message}")
