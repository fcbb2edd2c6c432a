"""The steps of a relay, before and after which a fault is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.outbox import Relay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Fault = Callable[[str, Relay], Awaitable[None]]

#: The methods that speak with the database or the queue, in their order.
METHODS = ("_lead", "_read", "_send", "_settle")
#: Each is before or after one of them. "after _send": added and not deleted.
STEPS = ["before _lead", "before _read", "after _read", "after _send", "after _settle"]


def at_each_step(fault: Fault, set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Call a function with the name of each step, in all relays of this process."""
    for name in METHODS:
        set_attribute(Relay, name, _with_fault(name, getattr(Relay, name), fault))


def _with_fault(name: str, method: Any, fault: Fault) -> Any:
    async def with_fault(self: Relay, *args: Any, **options: Any) -> Any:
        await fault(f"before {name}", self)
        result = await method(self, *args, **options)
        await fault(f"after {name}", self)
        return result

    return with_fault
