"""Signals, as a caller sends them to flow runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.errors import FlowRunEnded, InvalidArgument, JobUnknown, UnknownSignal
from leasequeue.errors.describing import text_of
from leasequeue.item import MAX_DATA_BYTES, codec
from leasequeue.item.codec import read_stored
from leasequeue.queue.plans.plan import as_bytes, definition_field, names_in, queue_in, run_key
from leasequeue.queue.plans.stages import answered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.lease import StageRef

#: Stands for a value that was not given, as None is one.
NOT_GIVEN = msgspec.UNSET
#: The answer of the script if the run has ended.
_ENDED = -3


def write_signal(
    name: str,
    value: Any,
    values: Mapping[str, Any],
    kind: Any = Any,
    read: Callable[[bytes], Any] = msgspec.json.decode,
) -> bytes:
    """Return the value of a signal in JSON: one value, or an object of values by name; or null.

    Raises:
        InvalidArgument: If there are both, or it is not of the type `kind`, which `read` reads.
    """
    if values and value is not NOT_GIVEN:
        raise InvalidArgument("value", value, "one value, or several by name, and not both")
    given = values or (None if value is NOT_GIVEN else value)
    try:
        written = codec.encode(given)
        read(written)
    except Exception as error:
        raise InvalidArgument(name, given, f"{kind} ({text_of(error)})") from error
    if len(written) > MAX_DATA_BYTES:
        raise InvalidArgument(name, f"{len(written):,} bytes of JSON", f"at most {MAX_DATA_BYTES:,}")
    return written


async def give_signal(engine: Engine, stage: StageRef, value: bytes) -> bool:
    """Give a run the signal for a stage; return False if it has one, or its time is over.

    Raises:
        JobUnknown: If there is no such run.
        UnknownSignal: If no stage of it waits for this signal.
        FlowRunEnded: If it has ended.
    """
    key = run_key(stage.home, stage.run)
    fields = b"state", definition_field(as_bytes(stage.path)), b"stages"
    state, definition, stages = await engine.read_at(b"HMGET", key, *fields)
    if state is None:
        raise JobUnknown(stage.run, is_flow_run=True)
    found: dict[str, Any] = read_stored(definition, {})
    if found.get("signal") is not True:
        names = names_in(read_stored(stages, []))
        texts = await engine.read_at(b"HMGET", key, b"", *(definition_field(as_bytes(one)) for one in names))
        signals = [
            one for one, text in zip(names, texts[1:], strict=True) if b'"signal":true' in (text or b"")
        ]
        raise UnknownSignal(f"flow run {stage.run!r}", stage.path, signals)
    reply = await engine.run_at(
        queue_in(found) or stage.home, "run_report", (stage.encode(), b"signal", value)
    )
    [answer] = answered(engine, reply)
    if answer == _ENDED:
        raise FlowRunEnded(stage.run)
    return answer == 1
