"""Test your code against a real server: assertions, a clock that the test moves, and network faults."""

from leasehold.testing.assertions import (
    ANY,
    assert_added,
    assert_completed,
    assert_dead,
    assert_empty,
    assert_not_added,
)
from leasehold.testing.clock import Clock
from leasehold.testing.inline import InlineTasks, TaskRun
from leasehold.testing.plugin import Inline, Queues, Workers
from leasehold.testing.proxy import Proxy

__all__ = [
    "ANY",
    "Clock",
    "Inline",
    "InlineTasks",
    "Proxy",
    "Queues",
    "TaskRun",
    "Workers",
    "assert_added",
    "assert_completed",
    "assert_dead",
    "assert_empty",
    "assert_not_added",
]
