"""The programs for Starlette, Flask and Django run: each adds a task, and a worker runs it."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from leasequeue import Worker, call_sync
from leasequeue.fastapi import lifespan
from tests.docs.pages import DOCS, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flask import Flask

PAGE = DOCS / "how-to" / "other-frameworks.md"
PROGRAMS = {block.title: block.code for block in blocks(PAGE) if block.title}
#: What the pages leave to the reader: a project of Django, and calls of its views.
DJANGO = {
    "settings.py": """
        ALLOWED_HOSTS = ["testserver"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "users.db"}}
        INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
        ROOT_URLCONF = "urls"
        USE_TZ = True
    """,
    "urls.py": """
        import views
        from django.urls import path

        urlpatterns = [path("mails", views.sign_up), path("mails/<str:job_id>", views.show)]
    """,
    "calls.py": """
        import asyncio
        import json

        import django_worker
        from django.core.management import call_command
        from django.test import AsyncClient, Client
        from leasequeue import Worker, call_sync

        call_command("migrate", verbosity=0)
        added = Client().post("/mails", {"to": "ann@example.org"})
        users = call_sync(django_worker.count_users.add)

        async def show(job_id: str) -> list[object]:
            response = await AsyncClient().get(f"/mails/{job_id}")
            return [response.status_code, json.loads(response.content)]

        call_sync(Worker(django_worker.tasks).drain)
        shown = asyncio.run(show(added.json()["id"]))
        unknown = asyncio.run(show("unknown"))
        print(json.dumps([added.status_code, added.json(), *shown, unknown[0], call_sync(users.result)]))
    """,
}
WELCOMED = "8 characters to ann@example.org"


@pytest.fixture
def folder(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the programs of the page, which this process can import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REDIS_URL", redis_url)
    for title, code in PROGRAMS.items():
        (tmp_path / title).write_text(code)
    yield tmp_path
    for module in PROGRAMS:
        sys.modules.pop(module.removesuffix(".py"), None)


@pytest.mark.usefixtures("folder")
async def test_the_program_for_starlette_runs() -> None:
    app: Starlette = importlib.import_module("starlette_app").app
    tasks = importlib.import_module("mails").tasks
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        added = await client.post("/mails", json={"to": "ann@example.org"})
        assert (added.status_code, added.headers["location"]) == (202, f"/mails/{added.json()['id']}")
        working = asyncio.create_task(Worker(tasks).drain())
        shown = await client.get(added.headers["location"])
        await working
        assert (shown.status_code, shown.json()) == (200, {"result": WELCOMED})
        refused = await client.post("/mails", json={"to": 7})
        assert (refused.status_code, "Expected `str`" in refused.json()["error"]) == (422, True)
        assert (await client.get("/mails/unknown")).status_code == 404
    await tasks.close()


@pytest.mark.usefixtures("folder")
def test_starlette_takes_the_lifespan_with_a_worker() -> None:
    program, mails = importlib.import_module("starlette_app"), importlib.import_module("mails")
    app = Starlette(routes=program.app.routes, lifespan=lifespan(mails.tasks, worker=True))
    with TestClient(app) as client:
        added = client.post("/mails", json={"to": "ann@example.org"})
        assert client.get(added.headers["location"]).json() == {"result": WELCOMED}


@pytest.mark.usefixtures("folder")
def test_the_program_for_flask_runs() -> None:
    app: Flask = importlib.import_module("flask_app").app
    tasks = importlib.import_module("mails").tasks
    client = app.test_client()
    added = client.post("/mails", json={"to": "ann@example.org"})
    assert (added.status_code, added.location) == (202, f"/mails/{added.get_json()['id']}")
    call_sync(Worker(tasks).drain)
    shown = client.get(added.location)
    assert (shown.status_code, shown.json) == (200, {"result": WELCOMED})
    refused = client.post("/mails", json={"to": 7})
    assert (refused.status_code, "Expected `str`" in refused.get_json()["error"]) == (422, True)
    assert client.get("/mails/unknown").status_code == 404
    call_sync(tasks.close)


@pytest.mark.slow  # Django is set up once in a process
def test_the_program_for_django_runs(folder: Path) -> None:
    for name, code in DJANGO.items():
        (folder / name).write_text("\n".join(line[8:] for line in code.splitlines()))
    printed = subprocess.run(
        [sys.executable, "calls.py"],
        cwd=folder,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    ).stdout
    answers: list[Any] = json.loads(printed)
    assert answers == [202, {"id": "welcome-1"}, 200, {"result": WELCOMED}, 404, 1]
