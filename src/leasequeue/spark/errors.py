"""Errors that only Spark raises.

LeasequeueError
├── StreamTakenOver            a second query reads the lease stream of the same checkpoint
├── OutputTakenOver            a second run writes into the same output folder
└── QueryStopped               the query of a run was stopped before it had ended
"""

from __future__ import annotations

from leasequeue.errors import LeasequeueError


class StreamTakenOver(LeasequeueError):
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


class OutputTakenOver(LeasequeueError):
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


class QueryStopped(LeasequeueError):
    """The query of a run was stopped before it had processed all its input.

    The items of its last batch stay leased to the checkpoint for the lease time, and a run with the same
    folders continues with them.

    Attributes:
        query: The id of the query.
    """

    def __init__(self, query: str) -> None:
        self.query = query
        super().__init__(
            f"the query {query} was stopped before all its input was processed, by query.stop() or because "
            "another query was started with its checkpoint. Run it again with the same folders to continue"
        )
