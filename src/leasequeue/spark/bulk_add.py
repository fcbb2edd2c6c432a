"""`add`: add the rows of a table to a queue and return a report."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue.errors import ServerError
from leasequeue.spark.columns import Columns
from leasequeue.spark.options import LOCATION, FormatOptions, server_options
from leasequeue.spark.portal import call_with_retries, check_server, open_queue
from leasequeue.spark.row_checks import check_rows
from leasequeue.spark.sessions import active, is_connect
from leasequeue.spark.source import register
from leasequeue.spark.writers import WRITE_OPTIONS, Report, job_name
from leasequeue.wire.urls import holds_login

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame


def add(df: DataFrame, queue: str, *, check: bool = True, **options: Any) -> Report:
    """Add the rows of a table to a queue and return a report.

        report = leasequeue.spark.add(df, "emails", url="redis://localhost", idColumn="address")
        print(report.added, report.already_there)

    Does the same as `df.write.format("leasequeue").options(…).mode("append").save()`, from any thread, and
    checks all rows first: if one row cannot be an item, nothing is added. The report is kept for a day as the
    result of the job's name: `await queue.results.get(job)`.

    Args:
        df: The rows. They are read twice, see `check`: persist them if reading is expensive, or if it does
            not return the same rows each time.
        queue: The queue's name.
        check: Whether to check all rows before adding the first. With False, rows are added until one cannot
            be an item.
        **options: Options of the format, such as `url`, `idColumn`, `dataColumn`, `delayColumn`.

    Raises:
        InvalidArgument: If an option or a column cannot be used, or a row cannot be an item. Nothing was
            added.
        ServerError: If the server does not answer, or the report cannot be read after the rows were added.
        pyspark.errors.PySparkException: If the job fails.
    """
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
    parsed = FormatOptions({**texts, "queue": queue}, WRITE_OPTIONS)
    target = parsed.target()
    job = job_name(parsed) or f"job:{uuid.uuid4().hex}"
    check_server(target)
    exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    columns = Columns.chosen(parsed, df.schema, exact=exact)
    kept = {name: text for name, text in texts.items() if name.lower() not in ("job", "queue")}
    if is_connect(df) and holds_login(target.url):  # the Connect server reads its own variable or file
        location: AbstractContextManager[dict[str, str]] = nullcontext({})
    else:  # the workers have the environment that Spark was started with: pass on the URL of this one
        kept = {name: text for name, text in kept.items() if name.lower() not in LOCATION}
        location = server_options(target.url, cluster=target.cluster)
    with active(df.sparkSession), location as server:
        register(df.sparkSession)
        if check:
            check_rows(df, columns)
        writer = df.write.format("leasequeue").options(**kept, **server, queue=queue, job=job)
        writer.mode("append").save()
    with open_queue(target) as portal:
        get = partial(portal.queue.results.get, job)
        result = portal.call(call_with_retries, get, parsed.retry_timeout())
    if result is None:
        raise ServerError(f"the report of the job {job!r} has been removed from the server")
    return Report.read(job, result)
