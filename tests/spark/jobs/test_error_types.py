"""The types of errors, from the texts that events keep of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.spark.jobs.item_history import error_line, error_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/x.py", line 3, in main
  |     async with asyncio.TaskGroup() as group:
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x.py", line 1, in one
    | ValueError: bad
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/x.py", line 2, in two
    |     raise http.Gone("http://x")
    | http.Gone: http://x
    +------------------------------------
"""


def test_the_type_of_an_error_is_the_class_that_its_text_names(spark: SparkSession) -> None:
    cases = {
        traced("ValueError: bad: worse"): "ValueError",
        traced("KeyboardInterrupt"): "KeyboardInterrupt",
        traced("app.errors.Bounced: full\nindent:\n  more\nNote: less"): "app.errors.Bounced",
        f"{traced('KeyError: 1')}\nDuring handling of …:\n\n{traced('TypeError: no')}": "TypeError",
        traced("E: " + "x" * 900)[-1000:]: "E",
        GROUP: "http.Gone",
        "TimeoutError: after 3 s": "TimeoutError",
        "TimeoutError": "TimeoutError",
        "TimeoutError:": "TimeoutError",
        "mailbox full": "other",
        "http://x is gone": "other",
        "mailbox: full\nValueError: bad": "mailbox",
        "": "other",
        # Its beginning is lost, so that its first word may be any.
        ("full: " * 200)[-1000:]: "other",
    }
    rows = spark.createDataFrame([*enumerate(cases)], "at int, error string").select(
        "at", error_line("error").alias("line")
    )
    found = rows.orderBy("at").select(error_type("line")).collect()
    assert [row[0] for row in found] == [*cases.values()]


def traced(line: str) -> str:
    """Return a traceback that ends with this line."""
    return f'Traceback (most recent call last):\n  File "/x.py", line 1, in f\n    g()\n    ~^^\n{line}\n'
