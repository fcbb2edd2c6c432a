"""`leasehold worker`: a worker as a process, or as several, for development and for years."""

from leasehold.cli.worker.command import worker

__all__ = ["worker"]
