"""A worker of Leasequeue with its defaults, for `leasequeue worker --processes`: its processes are killed.

BENCH_URL names the server.
"""

from __future__ import annotations

import os

from benchmarks.rivals.programs import protocol
from benchmarks.rivals.programs.leasequeue import job_of
from leasequeue import TaskQueue, Worker

protocol.record.announces = True
tasks = TaskQueue.from_url(os.environ["BENCH_URL"], "jobs")
job_of(tasks, results=False)
worker = Worker(tasks)
