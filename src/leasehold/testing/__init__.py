"""What users' tests need: a server, queues and workers as fixtures, time moved by hand, faults on demand."""

from leasehold.testing.assertions import (
    ANY,
    assert_added,
    assert_completed,
    assert_dead,
    assert_empty,
    assert_not_added,
)
from leasehold.testing.clock import Clock
from leasehold.testing.plugin import Queues, Workers
from leasehold.testing.proxy import Proxy

__all__ = [
    "ANY",
    "Clock",
    "Proxy",
    "Queues",
    "Workers",
    "assert_added",
    "assert_completed",
    "assert_dead",
    "assert_empty",
    "assert_not_added",
]
