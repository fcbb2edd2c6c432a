"""The report of `leasequeue pipeline`. Its commands are tested in tests/spark."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

from leasequeue.cli.pipeline import FORMATS, URL_VARIABLES, facts
from leasequeue.cli.server import DEFAULT_URL
from leasequeue.spark import options
from leasequeue.spark.jobs.load import Format


def test_a_total_and_a_state_with_the_same_name_are_both_printed() -> None:
    report = {
        "leased": 2381,
        "dead_letters": 81,
        "per_second": 13.150876527552242,
        "wait_p50": 0.126,
        "service_p50": None,
        "now": {"leased": 0, "dead": 81},
    }
    assert facts(report) == {
        "leased": 2381,
        "dead letters": 81,
        "per second": "13.2",
        "wait p50": "126 ms",
        "service p50": None,
        "leased at the end": 0,
        "dead at the end": 81,
    }


#: A program that runs the command line as if Spark were not installed.
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from leasequeue.cli import main
sys.argv[1:] = {arguments}
main()
"""


def without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as if Spark were not installed."""
    program = WITHOUT_SPARK.format(arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_help_of_a_job_needs_no_spark() -> None:
    for arguments in (["pipeline", "--help"], ["pipeline", "load", "--help"]):
        done = without_spark(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: leasequeue pipeline" in done.stdout


def test_a_job_without_spark_names_the_extra() -> None:
    done = without_spark("pipeline", "redrive", "emails")
    assert (done.returncode, done.stdout) == (2, "")
    assert 'pip install "leasequeue[spark]"' in done.stderr


def test_the_options_of_a_job_are_those_of_spark() -> None:
    assert get_args(Format) == FORMATS
    assert (options.URL_VARIABLES, options.DEFAULT_URL) == (URL_VARIABLES, DEFAULT_URL)
