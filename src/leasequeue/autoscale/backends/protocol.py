"""What a back end does: it starts and stops the units of one tier of a deployment."""

from __future__ import annotations

from typing import Protocol


class Backend(Protocol):
    """Starts and stops the units of one tier: processes, pods or machines.

    One object is for one tier, and is called by one event loop. The loop limits the time of each call, and
    cancels a call that takes longer: it must then be safe to call again. Several copies of the autoscaler
    may have an object each for one tier; only the leader requests, and a late request of an earlier leader
    is corrected by the next pass of the present one.
    """

    async def ready(self) -> int:
        """Return how many units work now.

        Raises:
            BackendError: If that cannot be known now.
        """
        ...

    async def requested(self) -> int:
        """Return how many units were asked for last, by any client: what the platform works towards.

        Raises:
            BackendError: If that cannot be known now.
        """
        ...

    async def request(self, units: int) -> None:
        """Ask for a number of units in all. It returns when that is noted, not when they work.

        Asking again for the same number changes nothing.

        Args:
            units: How many there shall be, 0 or more.

        Raises:
            BackendError: If that could not be noted.
        """
        ...

    async def close(self) -> None:
        """Disconnect. The units go on. Closing twice is fine."""
        ...
