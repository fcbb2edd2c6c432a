"""A worker of Leasehold with its defaults, for `leasehold worker --processes`: its processes are killed.

BENCH_URL names the server.
"""

from __future__ import annotations

import os

from benchmarks.rivals.programs import protocol
from benchmarks.rivals.programs.leasehold import job_of
from leasehold import TaskQueue, Worker

protocol.record.announces = True
tasks = TaskQueue.from_url(os.environ["BENCH_URL"], "jobs")
job_of(tasks, results=False)
worker = Worker(tasks)
