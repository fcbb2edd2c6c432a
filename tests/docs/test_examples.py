"""Run the Python examples of README and docs, page by page, on a real server."""

from __future__ import annotations

import ast
import asyncio
import inspect
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue
from tests.docs.pages import DOCS, PAGES, Block, blocks, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

WITH_EXAMPLES = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
#: These start with `queue`, an open queue.
HOW_TO = [page for page in WITH_EXAMPLES if page.parent == DOCS / "how-to"]
#: These also start with `spark`, a session: test_spark_pages runs them.
WITH_SPARK = [page for page in HOW_TO if page.name.startswith("spark-")]
OTHERS = [page for page in WITH_EXAMPLES if page not in HOW_TO]
#: This one starts with `database`, too: test_outbox_page runs it.
OUTBOX = DOCS / "how-to" / "outbox.md"
#: The examples of these wait for delays and timeouts.
SLOW = {"delays.md", "errors.md", "schedules.md", "tutorial.md"}
#: These run whole jobs with Spark, whose parts tests/spark runs.
LONG = {"spark-drain.md", "spark-load.md", "spark-report.md"}


def each_of(pages: list[Path]) -> pytest.MarkDecorator:
    """Run a test with each of these pages."""
    return pytest.mark.parametrize(
        "page",
        [pytest.param(page, id=name_of(page), marks=lane_of(page)) for page in pages],
    )


def lane_of(page: Path) -> list[pytest.MarkDecorator]:
    """Return the marker for the time that the examples of a page take."""
    if page.name in LONG:
        return [pytest.mark.long]
    return [pytest.mark.slow] if page.name in SLOW else []


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    """Return an event loop for one page, in an empty folder and without a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def queue(runner: asyncio.Runner) -> Iterator[AsyncWorkQueue]:
    """Return a queue on a new embedded server, in the event loop of the page."""
    opened = AsyncExitStack()
    yield runner.run(opened.enter_async_context(AsyncWorkQueue.embedded("emails")))
    runner.run(opened.aclose())


@each_of(OTHERS)
def test_the_examples_of_a_page_run(
    page: Path, runner: asyncio.Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(page, runner, capsys, {})


@each_of([page for page in HOW_TO if page not in (*WITH_SPARK, OUTBOX)])
def test_the_examples_of_a_how_to_run(
    page: Path, runner: asyncio.Runner, queue: AsyncWorkQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(page, runner, capsys, {"queue": queue})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_of_a_page_is_read(page: Path) -> None:
    fences = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")]
    assert len(fences) == 2 * len(blocks(page))


def run_page(
    page: Path, runner: asyncio.Runner, capsys: pytest.CaptureFixture[str], given: dict[str, Any]
) -> dict[str, Any]:
    """Run the examples of a page, and return its names."""
    namespace = {"__name__": "__main__", **given}
    for block in blocks(page):
        if block.language != "python" or block.reason:
            continue
        if block.title:
            Path(block.title).parent.mkdir(exist_ok=True)
            Path(block.title).write_text(block.code)
        else:
            run_block(page, block, runner, namespace)
        assert capsys.readouterr().out == block.output, f"printed by {name_of(page)}:{block.line}"
    return namespace


def run_block(page: Path, block: Block, runner: asyncio.Runner, namespace: dict[str, Any]) -> None:
    """Run a block as `python -m asyncio` does, with `await` at the top level."""
    # With the empty lines, a traceback names the line of the page.
    source = "\n" * (block.line - 1) + block.code
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, namespace)  # noqa: S307 - the code is that of our own pages
    if inspect.iscoroutine(result):
        runner.run(result)
