"""The fixtures of this folder."""

from __future__ import annotations

from tests.faults.cluster_nodes import cluster, kind, nodes
from tests.queue.fixtures import clock, make_queue, queue, tidy

__all__ = ["clock", "cluster", "kind", "make_queue", "nodes", "queue", "tidy"]
