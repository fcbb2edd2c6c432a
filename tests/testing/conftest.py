"""The fixtures of this folder."""

from __future__ import annotations

import os

import pytest

from tests.worker.conftest import clock, make_queue, queue, tidy

__all__ = ["clock", "make_queue", "queue", "tidy"]

_REMOVED_VARIABLES = ("COV_", "LEASEQUEUE_", "PYTEST_", "REDIS_URL")
#: Plugins that act on the whole process, so that they cannot run inside of another run of pytest.
_NOT_IN_PROCESS = ("cacheprovider", "faulthandler", "timeout", "xdist", "pytester")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give the folder of a user's project, where warnings are errors; `run_in_process` runs pytest in it."""
    for name in os.environ:
        if name.startswith(_REMOVED_VARIABLES) and name != "PYTEST_CURRENT_TEST":
            monkeypatch.delenv(name)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n")
    return pytester


def run_in_process(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest on a project in this process, with the plugins that are installed."""
    disabled = [option for plugin in _NOT_IN_PROCESS for option in ("-p", f"no:{plugin}")]
    return project.runpytest_inprocess(*disabled, *arguments)
