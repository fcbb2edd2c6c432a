"""The dashboard and the alert rules name metrics and labels that are exported, and the alerts fire."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with mkdocs, without types
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from leasequeue import AsyncWorkQueue, Item, LeasequeueError, TaskQueue, Worker, telemetry
from leasequeue.cli.exporter import Exporter
from leasequeue.cli.worker.health import report_health
from leasequeue.queue.queue import engine_of
from tests.docs.pages import DOCS, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from prometheus_client import Metric

ALERTS = DOCS / "files" / "leasequeue-alerts.yml"
DASHBOARD = DOCS / "files" / "leasequeue-grafana.json"
#: What Prometheus adds.
ADDED = {"instance", "job", "le"}

#: The rows of the reference about the metrics of queues and workers.
_ROWS = re.compile(
    r"^\| `(leasequeue\.(?:queue|worker)\.[\w.]+)` \| (gauge|counter)((?:, s)?) \|", re.MULTILINE
)
_NAME = re.compile(r"\b(?:leasequeue|messaging)_[a-z_]+")
_WORDS = re.compile(r"\b(?:by|on) \(([a-z_, ]*)\)")
_MATCHERS = re.compile(r"\{([^{}]*)\}")


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> list[str]:
    """Return the expressions of the rules and of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        *(rule["expr"] for rule in rules()),
        *(target["expr"] for panel in panels for target in panel["targets"]),
    ]


def test_the_page_says_for_what_each_alert_fires() -> None:
    named = set(re.findall(r"`(Leasequeue\w+)`", (DOCS / "how-to" / "watch.md").read_text()))
    assert {rule["alert"] for rule in rules()} == named


def labels_in(expression: str) -> set[str]:
    """Return the labels that an expression names."""
    grouped = [label.strip() for words in _WORDS.findall(expression) for label in words.split(",")]
    matched = [
        label for part in _MATCHERS.findall(expression) for label in re.findall(r"(\w+)[!=~]+\"", part)
    ]
    return {*grouped, *matched} - ADDED


@pytest.fixture
def exported() -> Iterator[CollectorRegistry]:
    """Record the metrics of this process, and give where they are."""
    found = CollectorRegistry()
    provider = MeterProvider(
        [PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=found)],
        shutdown_on_exit=False,
    )
    telemetry.instrument(meter_provider=provider, traces=False)
    report_health(provider.get_meter("leasequeue"), Worker())
    yield found
    telemetry.uninstrument()
    provider.shutdown()


async def work(redis_url: str, name: str, exported: CollectorRegistry) -> list[Metric]:
    """Add tasks, run them, one of them in vain, and make a call that fails; return what a run sees."""
    seen: list[Metric] = []
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task()
        async def send(number: int) -> None:
            seen.extend(exported.collect())
            if number == 1:
                raise LookupError

        await tasks.add_many([send.call(number) for number in range(2)])
        await Worker(tasks, clean_every=None).drain()
    async with AsyncWorkQueue.from_url("redis://127.0.0.1:1", "nowhere") as lost:
        with pytest.raises(LeasequeueError):
            await lost.add_item(Item(b"x"))
    return seen


async def test_what_the_dashboard_and_the_alerts_name_is_exported(
    queue: AsyncWorkQueue, redis_url: str, exported: CollectorRegistry
) -> None:
    await queue.stats()
    families = await work(redis_url, queue.name, exported)
    await engine_of(queue).registry.beat({"name": "w", "runs": 1}, alive_ms=60_000, first=True)
    exporter = Exporter(redis_url, [queue.name], every=5)
    await exporter.sample_all()
    of_queues = exporter.registry()
    await exporter.close()
    families += [*exported.collect(), *of_queues.collect()]
    samples = [sample for family in families for sample in family.samples]
    labels: dict[str, set[str]] = {}
    for sample in samples:
        labels.setdefault(sample.name, set()).update(sample.labels)
    for expression in expressions():
        named = _NAME.findall(re.sub(r"\b(?:by|on) \([^)]*\)|\{[^{}]*\}", "", expression))
        assert named, expression
        assert {*named} <= labels.keys(), expression
        assert labels_in(expression) <= set[str]().union(*(labels[name] for name in named)), expression
    documented = {
        f"{name.replace('.', '_')}{'_seconds' * (unit == ', s')}{'_total' * (kind == 'counter')}"
        for name, kind, unit in _ROWS.findall((REFERENCE / "metrics.md").read_text())
    }
    assert documented == {
        name for name in labels if name.startswith(("leasequeue_queue_", "leasequeue_worker_"))
    }


#: What has been completed of a task.
COMPLETED = 'leasequeue_processed_items_total{leasequeue_task="send",leasequeue_outcome="completed"}'
#: What makes each alert fire, as series of Prometheus, and for which labels; a sample each minute.
FIRING: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "LeasequeueQueueNotSampled": ({"leasequeue_queue_up": "0+0x70"}, {}),
    "LeasequeueExporterAbsent": ({}, {}),
    "LeasequeueBacklogOld": ({"leasequeue_queue_oldest_age_seconds": "400+60x70"}, {}),
    "LeasequeueNoWorker": (
        {
            'leasequeue_queue_items{state="waiting"}': "5+0x70",
            'leasequeue_queue_workers{state="alive"}': "0+0x70",
        },
        {},
    ),
    "LeasequeueWorkerDead": ({'leasequeue_queue_workers{state="dead"}': "1+0x70"}, {}),
    "LeasequeueWorkerUnhealthy": ({"leasequeue_worker_healthy": "0+0x70"}, {}),
    "LeasequeueRunsStuck": (
        {
            'leasequeue_runs_active{leasequeue_task="send"}': "2+0x70",
            COMPLETED: "7+0x70",
        },
        {"leasequeue_task": "send"},
    ),
    "LeasequeueRunsFail": (
        {
            COMPLETED: "0+8x70",
            'leasequeue_processed_items_total{leasequeue_task="send",leasequeue_outcome="failed"}': "0+2x70",
        },
        {"leasequeue_task": "send"},
    ),
    "LeasequeueDeadLetters": ({'leasequeue_queue_items{state="dead"}': "0+1x70"}, {}),
    "LeasequeueCallsFail": (
        {'messaging_client_operation_duration_seconds_count{error_type="ServerOutOfMemory"}': "0+3x70"},
        {"error_type": "ServerOutOfMemory"},
    ),
    "LeasequeuePaused": ({"leasequeue_queue_paused": "1+0x1500"}, {}),
}
#: A queue as it should be: none of the alerts fires.
QUIET = {
    "leasequeue_queue_up": "1+0x1500",
    "leasequeue_queue_oldest_age_seconds": "2+0x1500",
    'leasequeue_queue_items{state="waiting"}': "3+0x1500",
    'leasequeue_queue_items{state="dead"}': "3+0x1500",
    'leasequeue_queue_workers{state="alive"}': "2+0x1500",
    'leasequeue_queue_workers{state="dead"}': "0+0x1500",
    "leasequeue_queue_paused": "0+0x1500",
    "leasequeue_worker_healthy": "1+0x1500",
    'leasequeue_runs_active{leasequeue_task="send"}': "2+0x1500",
    'leasequeue_processed_items_total{leasequeue_task="send",leasequeue_outcome="completed"}': "0+99x1500",
    'leasequeue_processed_items_total{leasequeue_task="send",leasequeue_outcome="failed"}': "0+1x1500",
    'messaging_client_operation_duration_seconds_count{error_type=""}': "0+99x1500",
}


def series_of(values: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return series of one queue."""
    found = []
    for name, value in values:
        metric, _, labels = name.rstrip("}").partition("{")
        queue = 'messaging_destination_name="emails"'
        found.append({"series": f"{metric}{{{', '.join(filter(None, (queue, labels)))}}}", "values": value})
    return found


def promtool(*arguments: str | Path) -> None:
    ended = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.long
def test_promtool_accepts_the_rules_and_each_fires_when_it_should(tmp_path: Path) -> None:
    promtool("check", "rules", ALERTS)
    assert {rule["alert"] for rule in rules()} == FIRING.keys()
    labels_of = {rule["alert"]: rule["labels"] for rule in rules()}
    tests: list[dict[str, Any]] = [
        {
            "interval": "1m",
            "input_series": series_of(QUIET.items()),
            "alert_rule_test": [{"eval_time": "25h", "alertname": name} for name in FIRING],
        }
    ]
    for name, (series, labels) in FIRING.items():
        of_queue = {} if name == "LeasequeueExporterAbsent" else {"messaging_destination_name": "emails"}
        time = "25h" if name == "LeasequeuePaused" else "1h"
        alert = {"exp_labels": {**labels_of[name], **of_queue, **labels}}
        # Prometheus looks back for 5 minutes: the values continue until then.
        tests.append(
            {
                "interval": "1m",
                "input_series": series_of(series.items()),
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                        "eval_time": time,
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                    {
                        "expr": f"count(ALERTS{{{_matchers(name, alert['exp_labels'])}}})",
                        "eval_time": time,
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        )
    tests += [dead_letters_of_a_new_queue(), dead_letters_after_the_exporter_was_away()]
    file = tmp_path / "tests.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [f"{ALERTS}"], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("test", "rules", file)


def dead_letters_of_a_new_queue() -> dict[str, Any]:
    """Return a test: the first sample of a queue has dead letters; the alert fires for 15 minutes."""
    return {
        "interval": "1m",
        "input_series": series_of({'leasequeue_queue_items{state="dead"}': "_x60 50+0x70"}.items()),
        "promql_expr_test": [fires("LeasequeueDeadLetters", at, yes=yes) for at, yes in NEW_QUEUE],
    }


def dead_letters_after_the_exporter_was_away() -> dict[str, Any]:
    """Return a test: samples are missing for half an hour; what was there before is not new."""
    values = {'leasequeue_queue_items{state="dead"}': "50+0x60 _x30 50+0x70"}
    return {
        "interval": "1m",
        "input_series": series_of(values.items()),
        "promql_expr_test": [
            fires("LeasequeueDeadLetters", f"{at}m", yes=False) for at in (30, 61, 91, 95, 105, 120)
        ],
    }


#: When the first sample of a queue is after an hour: whether the alert fires.
NEW_QUEUE = (("59m", False), ("61m", True), ("74m", True), ("77m", False), ("120m", False))


def fires(name: str, at: str, *, yes: bool) -> dict[str, Any]:
    return {
        "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
        "eval_time": at,
        "exp_samples": [{"labels": "{}", "value": 1}] if yes else [],
    }


def _matchers(name: str, labels: dict[str, str]) -> str:
    return ", ".join(f'{key}="{value}"' for key, value in {"alertname": name, **labels}.items())
