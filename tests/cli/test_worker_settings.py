"""What the options of `leasequeue worker` change of the program's worker."""

from __future__ import annotations

import pytest

from leasequeue import Worker
from leasequeue.cli.worker import process
from leasequeue.cli.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("says", "options", "has"),
    [
        (None, {"processes": 3}, 2),
        (None, {"processes": 8}, 1),
        (None, {"processes": 100}, 1),
        (None, {"processes": 1}, None),  # one for each core
        (6, {"processes": 4}, 6),
        (6, {"processes": 4, "handler_processes": 5}, 5),
    ],
)
def test_worker_processes_share_the_cores_for_the_processes_of_handlers(
    monkeypatch: pytest.MonkeyPatch,
    says: int | None,
    options: dict[str, int],
    has: int | None,
) -> None:
    """Unless the program or an option says how many each of them has."""
    monkeypatch.setattr(process, "usable_cores", lambda: 8)
    monkeypatch.setattr(process, "find_worker", lambda _: Worker(handler_processes=says))
    settings = WorkerSettings(target="program:worker", **options)  # type: ignore[arg-type]  # numbers
    assert process.prepare(settings).handler_processes == has
