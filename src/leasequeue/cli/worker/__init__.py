"""`leasequeue worker`: run a worker in one process or in several."""

from leasequeue.cli.worker.command import worker

__all__ = ["worker"]
