"""Test your code against a real server: assertions, a clock that the test moves, and network faults."""

from leasequeue.testing.assertions import (
    ANY,
    assert_added,
    assert_completed,
    assert_dead,
    assert_empty,
    assert_not_added,
)
from leasequeue.testing.clock import Clock
from leasequeue.testing.inline import InlineTasks, TaskRun
from leasequeue.testing.plugin import Inline, Queues, Workers
from leasequeue.testing.proxy import Proxy

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
