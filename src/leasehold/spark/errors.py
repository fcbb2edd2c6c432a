"""Errors that only Spark raises.

LeaseholdError
├── StreamTakenOver            a second query reads the lease stream of the same checkpoint
└── OutputTakenOver            a second run writes into the same output folder
"""

from __future__ import annotations

from leasehold.errors import LeaseholdError


class StreamTakenOver(LeaseholdError):
    """Another query now reads this lease stream: it was started later with the same checkpoint, or a copy.

    Attributes:
        stream: The stream's name, as in the checkpoint.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        super().__init__(
            f"another query has taken over the lease stream {stream}: it has the same checkpoint, or a copy. "
            "Run only one of them; a second query needs a separate checkpoint"
        )


class OutputTakenOver(LeaseholdError):
    """Another run now writes into this folder: it was started later with the same checkpoint.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"another run with the same checkpoint has begun to write into {path}: this run stops writing. "
            "Run only one of them"
        )
