"""The reason why a job failed, found in Spark's error."""

from __future__ import annotations

from itertools import pairwise

from leasequeue.errors import LeasequeueError


class JobFailed(LeasequeueError):
    """Spark could not finish a job. The text says why; Spark's error is the cause.

    Attributes:
        kind: The class name of the Leasequeue error that ended the job, as `InvalidArgument`; else empty.
    """

    def __init__(self, message: str) -> None:
        reason, self.kind = reason_of(message)
        super().__init__(reason)


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
