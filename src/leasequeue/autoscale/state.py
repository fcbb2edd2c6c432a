"""What the autoscaler keeps on the server from one pass to the next."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.alive.connections import Mark
from leasequeue.autoscale.flow_children import Learned  # noqa: TC001 - msgspec reads the types when it runs
from leasequeue.log import Log

if TYPE_CHECKING:
    from leasequeue.autoscale.config import Config

#: The form in which the state is kept. A state of another form is dropped.
VERSION = 1

log = Log("leasequeue.autoscale")


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory of all passes so far. It is the data of the item that copies lease in turn."""

    version: int = VERSION
    #: How many passes have ended.
    number: int = 0
    #: When the last one began, by the server's clock (s since 1970).
    at: float = 0.0
    #: The copy that leads; empty: it has stopped, and any other may lead at once.
    leader: str = ""
    #: How others can see whether that copy is alive: see `Mark`.
    session: str = ""
    connections: tuple[int, ...] = ()
    server: str = ""
    #: What the configuration was, as a digest.
    settings: str = ""
    #: What `plan` is to be given, and for each job what `measure` is.
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    #: On which queues the children are that the functions of flows return.
    children: list[Learned] = msgspec.field(default_factory=list)
    #: The last report; None: there is none.
    report: dict[str, Any] | None = None

    @property
    def mark(self) -> Mark:
        """How others can see whether the copy that leads is alive."""
        return Mark(self.connections, self.server, self.session)

    def led_by(self, copy: str, mark: Mark) -> State:
        """Return this state with another copy that leads; empty: none does."""
        return msgspec.structs.replace(self, leader=copy, **mark._asdict())


def encode_state(state: State) -> bytes:
    """Return a state as JSON; without what is remembered, if JSON cannot hold that."""
    try:
        return msgspec.json.encode(state)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        log.warning("the state of the autoscaler cannot be kept, and begins as a new one: %s", error)
        return msgspec.json.encode(msgspec.structs.replace(state, plan={}, jobs={}, report=None))


def decode_state(data: bytes) -> tuple[State, str]:
    """Return the state that some data holds, and why it could not be read; then the state is a new one.

    No data is a new state, too.
    """
    if not data:
        return State(), ""
    try:
        state = msgspec.json.decode(data, type=State)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return State(), str(error)
    if state.version != VERSION or state.number < 0:
        return State(), f"its version is {state.version}, and its number {state.number}"
    return state, ""


def digest_of(config: Config) -> str:
    """Return a digest of what is wished, to notice that it has changed between two passes."""
    return hashlib.sha256(repr((config.policy, config.deployments)).encode()).hexdigest()[:16]
