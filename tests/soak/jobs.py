"""The jobs of the soak: what an item asks its handler to do."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from leasequeue import AsyncWorkQueue, Item
from leasequeue.worker import Reject, Retry, Snooze

if TYPE_CHECKING:
    import random

    from leasequeue import Lease

#: The queues, named after the kind of their handler.
QUEUES = ("coroutines", "threads", "batches")
#: How many ids all producers add again and again.
SHARED = 12
#: Of the kind `sharded`: how many shards a queue has and by what, its concurrency, and that of each group.
SHARDS: dict[str, tuple[int, Literal["id", "group"], int, int]] = {
    "coroutines": (16, "id", 16, 16),
    "threads": (4, "id", 4, 4),
    "batches": (4, "group", 8, 2),
}

#: The groups of items that are in one.
GROUPS = "abcde"


def open_queue(url: str, name: str, kind: str, *, reply_timeout: float = 3.0) -> AsyncWorkQueue:
    """Open one of the queues."""
    if kind != "sharded":
        return AsyncWorkQueue.from_url(url, name, reply_timeout=reply_timeout)
    count, by, *_ = SHARDS[name]
    return AsyncWorkQueue.from_url(
        url, name, cluster=True, replicas=1, shards=count, shard_by=by, reply_timeout=reply_timeout
    )


def limits_of(name: str, kind: str) -> list[dict[str, Any]]:
    """Return the limits of a queue, as arguments of `Limits.set`."""
    whole: dict[str, Any] = {"rate": "300/s", "burst": 30, "concurrency": 20, "ageing": 5}
    each: dict[str, Any] = {"group": "*", "rate": "100/s", "burst": 10, "concurrency": 4}
    if kind == "sharded":
        *_, whole["concurrency"], each["concurrency"] = SHARDS[name]
        del each["rate"], each["burst"]  # the burst is below the shards
    return [] if kind == "plain" else [whole, each]


def group_of(item_id: str) -> str:
    """Return the group of an item of the kind `sharded`, whose id ends with it; empty: none."""
    return item_id.rpartition(".")[2]


@dataclass(frozen=True)
class Job:
    """What one item asks its handler to do."""

    #: How long the run takes (s), and whether it blocks the event loop.
    seconds: float = 0.0
    blocks: bool = False
    #: How many attempts fail before one succeeds; one that fails each time becomes a dead letter.
    failures: int = 0
    #: How many attempts kill their worker.
    crashes: int = 0
    rejected: bool = False
    #: The chance of a snooze.
    snoozes: float = 0.0

    def before(self, lease: Lease, chance: random.Random, *, gentle: bool) -> None:
        """Reject, snooze, crash or block, if the job says so.

        Raises:
            Signal: If the job says so.
        """
        if self.rejected:
            raise Reject("the job says so")
        if chance.random() < self.snoozes:
            raise Snooze(chance.uniform(0.0, 0.3))
        if lease.attempt <= self.crashes:
            if gentle:
                raise Snooze(0.1)  # another worker crashes instead
            os.kill(os.getpid(), signal.SIGKILL)
        if self.blocks:
            time.sleep(self.seconds)

    def after(self, lease: Lease, chance: random.Random) -> None:
        """Fail, if it is to.

        Raises:
            Retry, ValueError: If the job says so.
        """
        if lease.attempt <= self.failures:
            if chance.random() < 0.5:
                raise Retry("the job says so", delay=chance.uniform(0.0, 0.2))
            raise ValueError("the job says so")


def job_of(lease: Lease) -> Job:
    """Read what an item asks for."""
    return Job(**json.loads(lease.data))


def draw(chance: random.Random) -> Job:
    """Draw a job: most are quick and good."""
    quick = chance.uniform(0.0, 0.03)
    kinds = {
        Job(quick): 70,
        Job(chance.uniform(0.3, 4.0)): 6,
        Job(chance.uniform(0.3, 3.0), blocks=True): 0.5,
        Job(60.0): 0.1,  # over the time limit
        Job(quick, failures=chance.choice([1, 1, 2, 3])): 10,
        Job(quick, failures=100): 2,
        Job(quick, rejected=True): 2,
        Job(quick, crashes=chance.choice([1, 1, 2, 100])): 0.3,
        Job(quick, snoozes=0.5): 9,
    }
    return chance.choices(list(kinds), list(kinds.values()))[0]


def item(job: Job, item_id: str) -> Item:
    """The item that asks for a job."""
    return Item.from_json_data(asdict(job), id=item_id)
