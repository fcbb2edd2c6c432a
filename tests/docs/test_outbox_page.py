"""The examples of the page about the outbox, with a database."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from leasequeue.outbox import _DDL
from tests.docs.pages import blocks
from tests.docs.test_examples import OUTBOX, queue, run_page, runner

__all__ = ["queue", "runner"]

if TYPE_CHECKING:
    import asyncio

    from leasequeue import AsyncWorkQueue
    from tests.postgres import Postgres

#: What the page leaves to the reader.
SIGN_UPS = """
from django.db import transaction
from shop import sign_up
try:
    with transaction.atomic():
        sign_up("eve@example.org")
        raise InterruptedError
except InterruptedError:
    sign_up("ann@example.org")
"""


@pytest.mark.slow
def test_the_examples_of_the_outbox_run(
    server_of_rows: Postgres,
    runner: asyncio.Runner,
    queue: AsyncWorkQueue,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [shown] = [block.code for block in blocks(OUTBOX) if block.language == "sql"]
    assert shown == _DDL.format(table="leasequeue_outbox") + "\n"
    database = server_of_rows.location
    run_page(OUTBOX, runner, capsys, {"queue": queue, "database": database})
    folder = psycopg.conninfo.conninfo_to_dict(database)["host"]
    environment = {**os.environ, "REDIS_URL": str(queue.url), "PGHOST": str(folder)}
    subprocess.run([sys.executable, "-c", SIGN_UPS], env=environment, check=True)
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT convert_from(data, 'UTF8') FROM leasequeue_outbox").fetchall()
    assert ["ann@example.org" in text for (text,) in rows] == [True], "what was rolled back is not there"
