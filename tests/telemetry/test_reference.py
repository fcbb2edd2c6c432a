"""The reference of metrics has every metric, its attributes and its buckets, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics.export import Histogram

from leasequeue.telemetry import meters
from tests.worker.working import work

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.telemetry.recorded import Recorded

PAGE = (Path(__file__).parents[2] / "docs/pages/reference/metrics.md").read_text()
#: What is described here; `leasequeue stats` has its own metrics.
OURS = re.compile(
    r"`((?:messaging|leasequeue)\.(?!queue\.|worker\.)[\w.]+)` \| (?:counter|up-down counter|histogram),"
)


async def test_the_metrics_are_those_of_the_reference(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    async def handler(_: bytes) -> None: ...

    await work(queue, handler, b"")
    data = recorded.reader.get_metrics_data()
    assert data is not None
    found = {
        one.name: one for of in data.resource_metrics for scope in of.scope_metrics for one in scope.metrics
    }
    assert set(OURS.findall(PAGE)) == found.keys()
    assert all(f"`{one.unit}`" in PAGE or one.unit == "s" for one in found.values())
    for name, one in found.items():
        if isinstance(one.data, Histogram):
            (bounds,) = {point.explicit_bounds for point in one.data.data_points}
            assert f"| `{name}` | {', '.join(f'{bound:g}' for bound in bounds)} |" in PAGE
        for point in one.data.data_points:
            assert all(f"| `{attribute}` |" in PAGE for attribute in point.attributes or ())


def test_the_operations_are_those_of_the_reference() -> None:
    row = next(line for line in PAGE.splitlines() if "`messaging.operation.name`" in line)
    assert meters.TYPES.keys() <= set(re.findall(r"`(\w+)`", row))
