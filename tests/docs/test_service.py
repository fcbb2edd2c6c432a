"""The example service runs with the commands of its manifests, and the manifests fit the code."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # comes with mkdocs, without types
from fastapi.testclient import TestClient
from lightkube.resources import apps_v1, core_v1
from uvicorn.main import main as uvicorn

from leasequeue import AsyncWorkQueue
from leasequeue.cli.app import load
from leasequeue.worker.signals import LAST_SECONDS
from tests.docs.pages import DOCS, README, ROOT, blocks
from tests.ports import free_port
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fastapi import FastAPI

FOLDER = ROOT / "docs" / "examples" / "service"
PAGE = DOCS / "how-to" / "example-service.md"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SCRAPED: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
RESOURCES: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
PODS = {
    one["metadata"]["labels"]["part"]: one["spec"]["template"]
    for one in RESOURCES
    if one["kind"] == "Deployment"
}
PORTS = {"web": 8000, "worker": 8080, "exporter": 9464}
PROGRAMS = {"uvicorn": ["-m", "uvicorn"], "leasequeue": ["-m", "leasequeue.cli"]}
ORDER = {"customer": "ann", "month": "2026-10"}
REPORT = {"customer": "ann", "month": "2026-10", "sales": 2, "total": 30.5}


def container_of(part: str) -> dict[str, Any]:
    """Return the container of a part of the service on Kubernetes."""
    [container] = PODS[part]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def commands_of(part: str) -> list[list[str]]:
    """Return the command of a part of the service in each manifest."""
    container = container_of(part)
    return [COMPOSE["services"][part]["command"], [*container["command"], *container.get("args", [])]]


@asynccontextmanager
async def running(part: str, port: int, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a part of the service on another port, stop it, and check that it ends well."""
    program, *arguments = (
        word.replace("0.0.0.0", "127.0.0.1").replace(str(PORTS[part]), str(port))  # noqa: S104 - no one else
        for word in commands_of(part)[0]
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *PROGRAMS[program],
        *arguments,
        cwd=FOLDER,
        env={**os.environ, "REDIS_URL": url, "API_KEY": "the key", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode in (0, -signal.SIGTERM), part


async def answered(http: httpx.AsyncClient, url: str) -> httpx.Response:
    """Return the first answer that is no error; the process may still be starting."""
    async with asyncio.timeout(120):
        while True:
            try:
                answer = await http.get(url)
            except httpx.TransportError:
                pass
            else:
                if answer.is_success:
                    return answer
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_service_runs(redis_url: str) -> None:
    first = free_port(len(PORTS))
    ports = dict(zip(PORTS, range(first, first + len(PORTS)), strict=True))
    web, worker, exporter = (f"http://127.0.0.1:{port}" for port in ports.values())
    async with AsyncExitStack() as stack:
        for part, port in ports.items():
            await stack.enter_async_context(running(part, port, redis_url))
        http = await stack.enter_async_context(
            httpx.AsyncClient(timeout=30, headers={"X-Api-Key": "the key"})
        )
        for probe in (f"{web}/tasks/ready", f"{worker}/ready", f"{exporter}/live"):
            await answered(http, probe)

        added = await http.post(f"{web}/reports", json=ORDER)
        assert (added.status_code, added.json()) == (202, {"id": "ann-2026-10", "created": True})
        made = await http.get(web + added.headers["location"], params={"wait": 20})
        assert (made.status_code, made.json()["result"]) == (200, REPORT)
        refused = await http.post(f"{web}/reports", json={"customer": "Ann", "month": "2026-10"})
        assert refused.status_code == 422
        cancel = f"{web}/tasks/jobs/ann-2026-10/cancel"
        assert (await http.post(cancel)).status_code == 409, "it is done"
        for method, url in (("POST", cancel), ("POST", f"{web}/reports"), ("GET", f"{web}/tasks/queues")):
            stranger = await http.request(method, url, json=ORDER, headers={"X-Api-Key": "another"})
            assert stranger.status_code == 401

        async with AsyncWorkQueue.from_url(redis_url, "reports") as queue:
            [schedule] = await queue.schedules.list()
        assert (schedule.name, schedule.expression) == ("make_reports", "0 6 1 * *")

        assert (await http.get(f"{web}/metrics/")).status_code == 200, "it does not redirect"
        answer = await http.get(f"{web}/metrics")
        assert answer.status_code == 200
        sent = answer.text
        assert 'service_name="reports-web"' in sent
        assert re.search(r'^messaging_client_sent_messages_total\{.*"reports".*\} 1\.0$', sent, re.MULTILINE)
        runs = (await http.get(f"{worker}/metrics")).text
        assert re.search(
            r'^messaging_process_duration_seconds_count\{.*"make_report".*\} 1\.0$', runs, re.MULTILINE
        )

        async def is_sampled() -> bool:
            items = (await http.get(f"{exporter}/metrics")).text
            return bool(re.search(r'^leasequeue_queue_items\{.*"waiting".*\} 0\.0$', items, re.MULTILINE))

        await until("a sample says that nothing waits", is_sampled)


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
    monkeypatch.setenv("API_KEY", "the key")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        app: FastAPI = importlib.import_module(title.removesuffix(".py")).app
        with TestClient(app) as client:
            added = client.post("/mails", params={"to": "ann@example.org"})
            assert added.status_code == 202
            stranger = client.get(added.json()["result"])
            assert (stranger.status_code, added.json()["result"][-32:] in stranger.text) == (401, False)
            known = {"X-Api-Key": "the key"}
            result = client.get(added.json()["result"], params={"wait": 20}, headers=known)
            assert (result.status_code, "ann@example.org" in result.text) == (200, True)
            assert client.get("/tasks/ready").status_code == 200
    finally:
        for name in programs:
            sys.modules.pop(name.removesuffix(".py"), None)


async def test_the_schedule_orders_the_reports_of_all_customers(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.syspath_prepend(FOLDER)
    service = importlib.import_module("reports.tasks")
    try:
        async with service.tasks:
            ordering = await service.make_reports.add()
            await service.worker.drain()
            ids = await ordering.result(timeout=120)
            assert [name.partition("-")[0] for name in ids] == ["ann", "bob"]
            totals = [(await service.make_report.job(name).result(timeout=120)).total for name in ids]
            assert totals == [30.5, 30.5]
    finally:
        del sys.modules["reports.tasks"], sys.modules["reports"]


def test_the_page_shows_the_files() -> None:
    shown = {block.title: block.code for block in blocks(PAGE) if block.title}
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert shown == {str(path.relative_to(FOLDER)): path.read_text() for path in files}


@pytest.mark.parametrize("part", PORTS)
def test_each_command_exists_and_both_manifests_have_the_same(part: str) -> None:
    compose, kubernetes = commands_of(part)
    assert kubernetes[: len(compose)] == compose
    program, *arguments = kubernetes
    if program == "uvicorn":
        context = uvicorn.make_context("uvicorn", arguments)
        assert context.params["app"] == "reports.web:app"
    else:
        assert program == "leasequeue"
        context = load(arguments[0]).make_context(arguments[0], arguments[1:])
    ports = {name: value for name, value in context.params.items() if name in ("port", "health_port")}
    assert [*ports.values()] == [PORTS[part]]


@pytest.mark.parametrize("part", PORTS)
def test_ports_and_probes_of_a_pod_are_those_of_its_command(part: str) -> None:
    container, annotations = container_of(part), PODS[part]["metadata"]["annotations"]
    [port] = container["ports"]
    assert port["containerPort"] == PORTS[part] == int(annotations["prometheus.io/port"])
    prefix = "/tasks" if part == "web" else ""
    probes = {kind: container[kind]["httpGet"] for kind in container if kind.endswith("Probe")}
    paths = {"livenessProbe": f"{prefix}/live", "readinessProbe": f"{prefix}/ready"}
    if part == "exporter":
        del paths["readinessProbe"]
    assert probes == {kind: {"path": path, "port": port["name"]} for kind, path in paths.items()}


def test_a_worker_has_the_time_to_stop() -> None:
    grace = float(re.search(r"grace=(\d+)", (FOLDER / "reports" / "tasks.py").read_text())[1])  # type: ignore[index]  # or it fails
    assert PODS["worker"]["spec"]["terminationGracePeriodSeconds"] >= grace + LAST_SECONDS + 5
    assert COMPOSE["services"]["worker"]["stop_grace_period"] == f"{grace + 15:.0f}s"


#: From the schemas of the API server.
TYPES: dict[str, Any] = {"Deployment": apps_v1.Deployment, "Service": core_v1.Service}


def test_kubernetes_knows_each_field_and_its_type() -> None:
    for one in RESOURCES:
        # A field that they do not have would be lost.
        assert TYPES[one["kind"]].from_dict(one).to_dict() == one
        assert TYPES[one["kind"]]._api_info.resource.api_version == one["apiVersion"]


def test_compose_gives_programs_texts_and_waits_for_what_can_say_that_it_is_there() -> None:
    used = {
        volume.partition(":")[0] for one in COMPOSE["services"].values() for volume in one.get("volumes", ())
    }
    assert {one for one in used if not one.startswith(".")} == {*COMPOSE["volumes"]}
    for service in COMPOSE["services"].values():
        # YAML would read 8080 as a number.
        texts = [*service.get("command", ()), *service.get("ports", ())]
        assert all(isinstance(one, str) for one in texts)
        for needed, how in service.get("depends_on", {}).items():
            assert "healthcheck" in COMPOSE["services"][needed]
            assert how == {"condition": "service_healthy"}


def test_everything_refers_to_what_is_there() -> None:
    for one in RESOURCES:
        if one["kind"] == "Deployment":
            assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
        else:
            assert one["spec"]["selector"] == PODS["web"]["metadata"]["labels"]
    targets = {(job["job_name"], tuple(_targets_of(job))) for job in SCRAPED["scrape_configs"]}
    services = COMPOSE["services"]
    assert {address for _, addresses in targets for address in addresses} == set(PORTS.items())
    assert {*services} == {"redis", "prometheus", *PORTS}
    assert services["prometheus"]["volumes"] == [".:/etc/prometheus:ro"]
    assert [path.name for path in (DOCS / "files").glob(SCRAPED["rule_files"][0])] == [
        "leasequeue-alerts.yml"
    ]
    assert all(services[part]["build"] == "." for part in PORTS)


def _targets_of(job: dict[str, Any]) -> list[tuple[str, int]]:
    fixed = [target.rpartition(":") for one in job.get("static_configs", ()) for target in one["targets"]]
    found = [(name, one["port"]) for one in job.get("dns_sd_configs", ()) for name in one["names"]]
    return [*found, *((host, int(port)) for host, _, port in fixed)]
