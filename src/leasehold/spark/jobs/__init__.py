"""Pipeline jobs: each is a function, a program for spark-submit, and a command of `leasehold pipeline`.

    from leasehold.spark.jobs.load import load

    load(spark, "emails", "letters.csv", format="csv", id="address")

As programs they take what their functions take: the arguments without a name first, the others as options.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.spark.jobs.command import Job

#: The names of the jobs: each is a module here, with a function of its name.
JOBS = ("load", "archive", "report", "redrive", "backfill")


def job_of(name: str) -> Job:
    """Import a job."""
    job: Job = getattr(importlib.import_module(f"leasehold.spark.jobs.{name}"), name)
    return job
