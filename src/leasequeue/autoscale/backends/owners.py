"""Units of another autoscaler that work for the same queues, on this machine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from leasequeue.autoscale.backends.units import unit_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.fleet import WorkerView


class OtherOwners:
    """Notices that another autoscaler has units at work for the queues of a deployment.

    Only Linux tells whose unit a process is.

    Args:
        ours: The name of this autoscaler.
    """

    def __init__(self, ours: str) -> None:
        self._ours = ours
        #: Of each worker whether another autoscaler has started it, and which one; empty: none has.
        self._owners: dict[int, str] = {}

    def look(self, workers: Iterable[WorkerView]) -> None:
        """Note whose units some registered workers are; each process is looked at once."""
        host = socket.gethostname()
        pids = {view.pid for view in workers if not view.dead and view.host == host}
        known = self._owners
        self._owners = {pid: known[pid] if pid in known else self._owner_of(pid) for pid in pids}

    @property
    def problem(self) -> str:
        """What to report; empty: nothing."""
        names = ", ".join(sorted({one for one in self._owners.values() if one}))
        return names and f"units of another autoscaler work for the same queues: those of {names}"

    def _owner_of(self, pid: int) -> str:
        try:
            name = unit_name(os.getsid(pid), None)
        except OSError:  # it has ended, or is of another user
            return ""
        # The names of deployments and tiers have no dots.
        owner = "" if name is None else name.rsplit(".", 2)[0]
        return "" if owner == self._ours else owner
