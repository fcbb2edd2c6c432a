"""`leasehold worker`: run a worker in one process or in several."""

from leasehold.cli.worker.command import worker

__all__ = ["worker"]
