"""The small examples return what they show, and each feature that the README names has one."""

from __future__ import annotations

import re

import pytest

from docs.examples.features import EXAMPLES, main
from leasequeue import AsyncWorkQueue
from tests.docs.pages import DOCS, README, ROOT

#: Pages with whole programs of their own, which other tests run; production.md is about a server.
ON_THEIR_PAGES = {
    "access",
    "async-service",
    "other-frameworks",
    "outbox",
    "production",
    "spark-load",
    "testing",
}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_returns_what_it_shows(name: str, redis_url: str) -> None:
    function, shows = EXAMPLES[name]
    assert (DOCS / "how-to" / f"{name}.md").exists()
    async with AsyncWorkQueue.from_url(redis_url, name) as queue:
        assert await function(queue) == shows


async def test_the_examples_run_as_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert await main(["sync", "tags"]) == 0
    assert re.findall(r"^(\w+): ", capsys.readouterr().out, re.MULTILINE) == ["sync", "tags"]


def test_each_feature_that_the_readme_names_has_an_example() -> None:
    parts = README.read_text().partition("\n## The parts\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"how-to/([\w-]+)\.md", parts))
    assert len(named) > 25
    assert named - {*EXAMPLES} <= ON_THEIR_PAGES


def test_the_links_of_the_examples_exist() -> None:
    folder = ROOT / "docs" / "examples"
    links = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text())
    assert links
    assert not [link for link in links if not (folder / link).exists()]
