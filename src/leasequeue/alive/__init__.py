"""Who is alive: registrations and heartbeats, the ring that notices deaths, failing, and the fleet."""

from leasequeue.alive.fleet import Fleet, RunView, WorkerView

__all__ = ["Fleet", "RunView", "WorkerView"]
