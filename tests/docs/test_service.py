"""The first services of the README and of the page on services run."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest
from fastapi.testclient import TestClient

from tests.docs.pages import DOCS, README, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI


@pytest.mark.parametrize(
    ("page", "title"), [(README, "web.py"), (DOCS / "how-to" / "async-service.md", "app.py")]
)
def test_the_first_service_of_a_page_runs(
    page: Path, title: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {block.title: block.code for block in blocks(page) if block.title}
    for name, code in programs.items():
        (tmp_path / name).write_text(code.replace("redis://localhost:6379", redis_url))
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        app: FastAPI = importlib.import_module(title.removesuffix(".py")).app
        with TestClient(app) as client:
            added = client.post("/mails", params={"to": "ann@example.org"})
            assert added.status_code == 202
            result = client.get(added.json()["result"], params={"wait": 20})
            assert (result.status_code, "ann@example.org" in result.text) == (200, True)
            assert client.get("/work/ready").status_code == 200
    finally:
        for name in programs:
            sys.modules.pop(name.removesuffix(".py"), None)
