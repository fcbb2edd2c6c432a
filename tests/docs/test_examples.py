"""Every Python example in README and docs is run, in order, page by page, on a real server."""

from __future__ import annotations

import ast
import asyncio
import inspect
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leasehold import AsyncWorkQueue
from tests.docs.pages import DOCS, PAGES, Block, blocks, name_of
from tests.spark.session import spark

__all__ = ["spark"]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

WITH_EXAMPLES = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
#: These begin where the tutorial ends: with `queue`, an open queue.
HOW_TO = [page for page in WITH_EXAMPLES if page.parent == DOCS / "how-to"]
#: These have `spark` as well, a session.
WITH_SPARK = [page for page in HOW_TO if page.name.startswith("spark-")]
OTHERS = [page for page in WITH_EXAMPLES if page not in HOW_TO]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    """Give an event loop for one page, in an empty folder, with no server but those that the page starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def queue(runner: asyncio.Runner) -> Iterator[AsyncWorkQueue]:
    """Give a queue on a server of its own, in the event loop of the page."""
    opened = AsyncExitStack()
    yield runner.run(opened.enter_async_context(AsyncWorkQueue.embedded("emails")))
    runner.run(opened.aclose())


@pytest.mark.parametrize("page", OTHERS, ids=name_of)
def test_the_examples_of_a_page_run(
    page: Path, runner: asyncio.Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(page, runner, capsys, {})


@pytest.mark.parametrize("page", [page for page in HOW_TO if page not in WITH_SPARK], ids=name_of)
def test_the_examples_of_a_how_to_run(
    page: Path, runner: asyncio.Runner, queue: AsyncWorkQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(page, runner, capsys, {"queue": queue})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WITH_SPARK, ids=name_of)
def test_the_examples_of_a_page_about_spark_run(
    page: Path,
    runner: asyncio.Runner,
    queue: AsyncWorkQueue,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_page(page, runner, capsys, {"queue": queue, "spark": spark, "folder": tmp_path})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_of_a_page_is_understood(page: Path) -> None:
    fences = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")]
    assert len(fences) == 2 * len(blocks(page))


def run_page(
    page: Path, runner: asyncio.Runner, capsys: pytest.CaptureFixture[str], given: dict[str, Any]
) -> None:
    namespace = {"__name__": "__main__", **given}
    for block in blocks(page):
        if block.language != "python" or block.reason:
            continue
        if block.title:
            Path(block.title).write_text(block.code)
        else:
            run_block(page, block, runner, namespace)
        assert capsys.readouterr().out == block.output, f"printed by {name_of(page)}:{block.line}"


def run_block(page: Path, block: Block, runner: asyncio.Runner, namespace: dict[str, Any]) -> None:
    """Run a block as `python -m asyncio` would, with `await` at the top."""
    # The empty lines let a traceback name the line of the page.
    source = "\n" * (block.line - 1) + block.code
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, namespace)  # noqa: S307 - the code is that of our own pages
    if inspect.iscoroutine(result):
        runner.run(result)
