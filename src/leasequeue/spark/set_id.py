"""The names of a lease set and of its reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SetId:
    """What an executor needs to read a set, and the driver to record its failures."""

    stream: str
    reader: str
    number: int
    lease_ms: int

    @property
    def name(self) -> bytes:
        """Return the set's name on the server."""
        return f"{self.stream}:{self.number}".encode()

    @property
    def holder(self) -> str:
        """Return the holder of its leases."""
        return f"lh:{self.stream}"
