"""What starts and stops units: a small protocol, and its implementations."""

from leasehold.autoscale.backends.opening import open_backend
from leasehold.autoscale.backends.protocol import Backend

__all__ = ["Backend", "open_backend"]
