"""The application of the page about the dashboard: who may do what on it, and what it shows of payloads."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from tests.docs.pages import DOCS, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAMS = {block.title: block.code for block in blocks(DOCS / "how-to" / "dashboard.md") if block.title}


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Iterator[Any]:
    """Import the program of the page."""
    (tmp_path / "web.py").write_text(PROGRAMS["web.py"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REDIS_URL", redis_url)
    yield importlib.import_module("web")
    sys.modules.pop("web", None)


def test_the_application_of_the_page_gives_each_user_the_rights_that_it_says(web: Any) -> None:
    ann, bob = {"x-forwarded-user": "ann"}, {"x-forwarded-user": "bob"}
    with TestClient(web.app, follow_redirects=False) as client:
        assert client.portal is not None
        client.portal.call(lambda: web.send_mail.add("ann@example.org"))
        assert client.get("/queues/").status_code == 403
        for who in (ann, bob):
            assert ">mails</a>" in client.get("/queues/", headers=who).text
            paused = client.post("/queues/queues/mails/pause", headers=who)
            assert paused.status_code == 303
        assert client.post("/queues/queues/mails/purge", headers=bob, data={"sure": "yes"}).status_code == 403
        purged = client.post("/queues/queues/mails/purge", headers=ann, data={"sure": "yes"})
        assert purged.headers["location"].endswith("count=1")


def test_the_redaction_of_the_page_hides_one_queue(web: Any) -> None:
    assert web.redacted("payments", b"4111") is None
    assert web.redacted("mails", b"to: ann") == "to: ann"
