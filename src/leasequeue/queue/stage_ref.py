"""Where a stage of a flow run is recorded: what its item refers to."""

from __future__ import annotations

from typing import NamedTuple, Self


class StageRef(NamedTuple):
    """Where a stage of a flow run is recorded.

    Attributes:
        home: The name of the queue whose keys hold the run.
        run: The id of the run.
        path: The name of the stage; of a child, `<path of its parent>/<index>`. Empty: the run itself.
        mark: What tells this run from earlier and later ones of its id; empty: it is not known.
    """

    home: str
    run: str
    path: str
    mark: str = ""

    @property
    def item_id(self) -> str:
        """The id of the stage's item."""
        return f"{self.run}/{self.path}"

    @property
    def stage(self) -> str:
        """The name of the stage of the plan that this is, or that it is a child of."""
        return self.path.partition("/")[0]

    def encode(self) -> bytes:
        """Return the reference as the scripts know it."""
        return "\0".join(self if self.mark else self[:3]).encode(errors="surrogateescape")

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """Read a reference; None if this is none."""
        parts = raw.decode(errors="surrogateescape").split("\0")
        return cls(*parts) if len(parts) in (3, 4) and parts[0] and parts[1] else None


def run_key(home: str, run: str) -> bytes:
    """Return the key of a flow run's hash."""
    return f"{home}:run:{run}".encode(errors="surrogateescape")
