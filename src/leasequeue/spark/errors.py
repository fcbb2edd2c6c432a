"""Errors that only Spark raises.

LeasequeueError
├── StreamTakenOver            a second query reads the lease stream of the same checkpoint
├── OutputTakenOver            a second run writes into the same output folder
├── QueryStopped               the query of a run was stopped before it had ended
└── HandlerFailed              a handler of `process` has a bug
"""

from __future__ import annotations

from itertools import pairwise

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


class HandlerFailed(LeasequeueError):
    """A handler of `process` raised an error that ends the run, or yielded what cannot be written.

    No item of its batch was completed. Spark's error is the cause, with the traceback of the handler.

    Attributes:
        reason: The error, where it was raised, and the items that the handler had; or what it yielded.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}\nNo item of this batch was completed: correct the handler and run it again with the "
            "same folders, or other workers get the items when their leases expire"
        )


def reason_of(message: str) -> tuple[str, str]:
    """Find the text and the class name of a Leasequeue error in Spark's message.

    Without one, return the last line of a Python traceback or the first line of the message, and no name.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for line in lines:
        name, colon, text = line.partition(": ")
        if colon and name.startswith("leasequeue.") and name.replace(".", "").replace("_", "").isalnum():
            return text, name.rpartition(".")[2]
    raised = [line for before, line in pairwise(lines) if _ends_traceback(before, line)]
    return (raised[-1] if raised else lines[0] if lines else "Spark gave no reason"), ""


def _ends_traceback(before: str, line: str) -> bool:
    name, colon, _ = line.partition(":")
    ends = bool(colon) and name.isidentifier() and name.endswith(("Error", "Exception"))
    return ends and not before.startswith("at ")
