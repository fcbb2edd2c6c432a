"""The jobs of the soak: what an item asks its handler to do."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from leasequeue import Item
from leasequeue.worker import Reject, Retry, Snooze

if TYPE_CHECKING:
    import random

    from leasequeue import Lease

#: The queues, named after the kind of their handler.
QUEUES = ("coroutines", "threads", "batches")
#: How many ids all producers add again and again.
SHARED = 12


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
