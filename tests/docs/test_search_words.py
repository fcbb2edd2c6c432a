"""Who searches for the words of another library finds the page: the index of the how-to guides has them."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS

INDEX = (DOCS / "how-to" / "index.md").read_text()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("visibility timeout", "lease-times.md"),
        ("chord", "flows.md"),
        ("beat", "schedules.md"),
        ("backoff", "retries.md"),
        ("failover", "cluster.md"),
        ("per tenant", "limits.md#limit-each-customer"),
        ("routing", "worker.md#several-queues"),
        ("rolling upgrade", "shutdown.md"),
        ("new version", "upgrade.md"),
        ("checklist", "production.md"),
        ("maxmemory", "production.md#memory"),
        ("stuck", "not-running.md"),
        ("SSE", "async-service.md#stream-progress-to-a-browser"),
        ("Kubernetes", "autoscale-kubernetes.md"),
        ("burst mode", "testing.md"),
        ("web UI", "dashboard.md"),
        ("Celery", "../migrate/celery.md#while-both-run"),
    ],
)
def test_the_words_of_other_libraries_lead_to_the_page(words: str, page: str) -> None:
    found = [part for part in re.split(r"\n(?=\|)|\n\n", INDEX) if words.lower() in part.lower()]
    assert any(f"]({page})" in part for part in found), found
    path, _, anchor = page.partition("#")
    headings = re.findall(r"^##+ (.+)$", (DOCS / "how-to" / path).read_text(), re.MULTILINE)
    assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}
