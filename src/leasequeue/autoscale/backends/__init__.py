"""What starts and stops units: a small protocol, and its implementations."""

from leasequeue.autoscale.backends.opening import open_backend
from leasequeue.autoscale.backends.protocol import Backend

__all__ = ["Backend", "open_backend"]
