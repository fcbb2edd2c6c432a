"""A quick sample of `make test-failover-cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.failover.cluster_kill import TAG, kill_master, replicated
from tests.faults.cluster_nodes import owner

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["seed", pytest.param("other", marks=pytest.mark.long)])
async def test_all_clients_follow_a_queue_whose_master_is_killed(
    unused_tcp_port_factory: Callable[[], int], dies: str
) -> None:
    async with replicated("embedded", unused_tcp_port_factory) as nodes:
        victim = owner(nodes, TAG)
        seed = victim if dies == "seed" else next(node for node in nodes if node is not victim)
        print(await kill_master(nodes, seed=seed))  # noqa: T201 - shown with -s
