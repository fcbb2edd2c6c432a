"""The errors that only leasequeue.fastapi raises."""

from __future__ import annotations

from leasequeue.errors import LeasequeueError


class DependencyMissing(LeasequeueError, LookupError):
    """A path operation asks for a queue or task queue that the application was not started with.

    Attributes:
        wanted: What was asked for.
        problem: Why it is not there, and what to do.
    """

    def __init__(self, wanted: str, problem: str) -> None:
        self.wanted = wanted
        self.problem = problem
        super().__init__(f"{wanted}: {problem}")
