"""The page on testing and the reference are correct."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import _leasequeue_pytest
from tests.docs.pages import DOCS, REFERENCE, blocks, table
from tests.testing.conftest import run_in_process

if TYPE_CHECKING:
    import pytest

PAGE = DOCS / "how-to" / "testing.md"
REFERENCE_PAGE = REFERENCE / "testing.md"


FAILING = """
async def test_that_fails(leasequeue_queue, leasequeue_clock):
    mailbox = Mailbox()
    mailbox.full = True
    await welcome(leasequeue_queue, "ada", "ada@example.org")
    await welcome(leasequeue_queue, "bob", "bob at example.org")
    await make_worker(leasequeue_queue, mailbox).drain()
    await assert_added(leasequeue_queue, "welcome-eve")
"""


def test_the_tests_on_the_page_pass_and_a_failure_prints_the_message_on_the_page(
    project: pytest.Pytester,
) -> None:
    (shown,) = re.findall(r"^AssertionError: .*?(?=\n```)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    files = {block.title: block.code for block in blocks(PAGE) if block.title}
    assert len([name for name in files if name.startswith("test_")]) == 3
    files["test_emails.py"] += FAILING
    for name, code in files.items():
        (project.path / name).write_text(code)
    run = run_in_process(project)
    run.assert_outcomes(failed=1, passed=6)
    assert "FAILED test_emails.py::test_that_fails" in run.stdout.str()
    printed = re.findall(r"^E +(AssertionError.*\n(?:E .*\n)*)", run.stdout.str(), re.MULTILINE)
    unmarked = re.sub(r"^E {7}", "", printed[0].rstrip(), flags=re.MULTILINE)
    assert without_label(unmarked) == without_label(shown)


def without_label(message: str) -> str:
    return re.sub(r"queue-[0-9a-f]{12}", "queue-0", message)


def test_the_reference_lists_the_fixtures_and_the_rules_of_histories() -> None:
    made = {name for name in vars(_leasequeue_pytest) if name.startswith("leasequeue_")}
    assert {row[0].strip("`") for row in table(REFERENCE_PAGE, "## Fixtures")} == made
