"""What a viewer may do: the names of the actions, and the rights that an application gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

#: The actions, and what each does. An action that is declared has its name here.
ACTIONS = {
    "pause": "pause a queue, so that nothing is leased",
    "resume": "end the pause of a queue",
    "purge": "remove all items of a queue that wait, are scheduled or dead",
    "cancel": "cancel an item or job that waits, is scheduled or runs",
    "release": "end the lease of an item, so that another worker takes it",
    "promote": "have an item that is scheduled, or waits for its retry, leased now",
    "requeue": "requeue dead letters",
    "drop": "remove dead letters with their data",
    "move": "move items that wait to another queue",
    "history": "keep a history of a queue, or keep it no more",
    "quiet": "have a worker fetch nothing more, or fetch again",
    "stop": "have a worker stop",
    "fail": "fail a worker, so that its items return to their queues",
    "run": "add the item of a schedule now",
    "unschedule": "remove a schedule",
    "cancel_flow": "cancel a flow run: nothing more of it runs",
    "retry_flow": "do a failed flow run again from what has failed",
    "signal_flow": "give a flow run a signal that a stage of it waits for",
    "replay_flow": "start a new flow run with the plan and the input of another",
}


@dataclass(frozen=True)
class Rights:
    """What a viewer may do. `rights=` of `dashboard` returns them for each request.

        Rights.read_only                                   # look, and change nothing
        Rights.all
        Rights.only("pause", "resume", who=user.name)      # look, and do these
        Rights.nothing                                     # not even look: status 403

    Args:
        actions: The names of the actions.
        who: Whom the log names; empty: the address from which the request came.
        look: Whether the pages may be seen.
    """

    actions: frozenset[str] = frozenset()
    who: str = ""
    look: bool = True

    #: To look, and change nothing.
    read_only: ClassVar[Rights]
    #: To do all that there is.
    all: ClassVar[Rights]
    #: Not even to look.
    nothing: ClassVar[Rights]

    @classmethod
    def only(cls, *actions: str, who: str = "") -> Rights:
        """Return the rights to look and to do some actions.

        Raises:
            InvalidArgument: If there is no action of such a name.
        """
        for name in actions:
            if name not in ACTIONS:
                raise InvalidArgument("actions", name, f"one of {', '.join(ACTIONS)}")
        return cls(frozenset(actions), who)

    def of(self, who: str) -> Rights:
        """Return the same rights for a viewer with a name, which the log shows."""
        return Rights(self.actions, who, self.look)


Rights.read_only = Rights()
Rights.all = Rights(frozenset(ACTIONS))
Rights.nothing = Rights(look=False)

#: What an application gives: the rights of all viewers, or what finds those of a request.
GivesRights: TypeAlias = "Rights | Callable[[Request], Rights | Awaitable[Rights]]"
