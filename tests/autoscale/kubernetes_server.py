"""A small API server of Kubernetes: Deployments, StatefulSets and their scales, over real HTTP, with faults.

It keeps versions, refuses writes on old ones, checks rights and tokens, and leaves out fields that are 0, as
the real one does; tests/autoscale/test_real_kubernetes.py makes the same calls to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from leasequeue.autoscale.backends.kubernetes import KubernetesBackend, KubernetesLimits
from leasequeue.autoscale.config import KubernetesSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


KINDS = {"deployments": "Deployment", "statefulsets": "StatefulSet"}
#: The reasons that the real server gives.
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict"}


@dataclass
class Workload:
    """A Deployment or StatefulSet, as far as its number of pods is concerned."""

    name: str
    namespace: str = "prod"
    plural: str = "deployments"
    replicas: int = 1
    ready: int = 0
    uid: str = "7a2c0b1e-0000-4000-8000-000000000001"
    version: int = 100

    def touch(self) -> None:
        """Change it as its controller does, which writes the status often."""
        self.version += 1


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of an answer."""

    status: int = 0
    body: bytes = b""
    headers: tuple[str, ...] = ()
    #: Close the connection without an answer.
    cut: bool = False
    #: Answer nothing until the server is closed.
    silent: bool = False
    #: Do what the request asks for first, so that only the answer is lost.
    applied: bool = False


Answer: TypeAlias = tuple[int, dict[str, Any]]


@dataclass
class KubernetesServer:
    """The API server. Its attributes may be changed at any time.

    Attributes:
        workloads: What there is.
        faults: What happens to the next requests, one each; None: nothing.
        denied: Rights that are missing: verb and resource, `("update", "deployments/scale")`.
        accepted: The only token that is accepted; None: any, and none.
        before_write: Called before each write is looked at.
        requests: Method and path of all requests.
        arrived: Set when a request arrives.
    """

    workloads: list[Workload] = field(default_factory=list)
    faults: list[Fault | None] = field(default_factory=list)
    denied: set[tuple[str, str]] = field(default_factory=set)
    accepted: str | None = None
    before_write: Callable[[], object] | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def kubeconfig(self, **user: object) -> str:
        """Return the text of a kubeconfig that leads here. JSON is YAML."""
        # Without a check of certificates, none are loaded, which would take most of the time of a test.
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": cluster}],
                "users": [{"name": "me", "user": user or {"token": "t"}}],
                "contexts": [
                    {"name": "here", "context": {"cluster": "here", "user": "me"}},
                    {"name": "elsewhere", "context": {"cluster": "here", "user": "nobody"}},
                ],
            }
        )

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[KubernetesServer]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        self.scheme = "https" if tls else "http"
        try:
            yield self
        finally:
            self._closed.set()
            server.close()
            await server.wait_closed()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        method, target, _ = line.split()
        path = target.partition("?")[0]
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((method, path))
        self.arrived.set()
        fault = self.faults.pop(0) if self.faults else None
        applied = fault is None or fault.applied
        status, answer = self._answer(method, path, headers, body) if applied else (0, {})
        if fault is None:
            sent = json.dumps(answer).encode()
            writer.write(
                _head(status, "Content-Type: application/json", f"Content-Length: {len(sent)}") + sent
            )
        elif fault.silent:
            await self._closed.wait()
        elif not fault.cut:
            writer.write(
                _head(fault.status, *fault.headers, f"Content-Length: {len(fault.body)}") + fault.body
            )
        await writer.drain()
        return fault is None or bool(fault.status)

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if self.accepted is not None and headers.get("authorization") != f"Bearer {self.accepted}":
            return _status(401, "Unauthorized")
        match path.strip("/").split("/"):
            case ["apis", "apps", "v1", "namespaces", namespace, plural, name, *sub] if plural in KINDS:
                pass
            case _:
                return _status(404, "the server could not find the requested resource")
        resource, verb = "/".join([plural, *sub]), {"GET": "get", "PUT": "update"}[method]
        if (verb, resource) in self.denied:
            account = "system:serviceaccount:prod:media-autoscaler"
            return _status(
                403,
                f'{plural}.apps "{name}" is forbidden: User "{account}" cannot {verb} resource '
                f'"{resource}" in API group "apps" in the namespace "{namespace}"',
            )
        if method == "PUT" and self.before_write:
            self.before_write()
        found = [
            one
            for one in self.workloads
            if (one.namespace, one.plural, one.name) == (namespace, plural, name)
        ]
        if not found:
            return _status(404, f'{resource}.apps "{name}" not found')
        if method == "PUT":
            return self._write(found[0], json.loads(body))
        return 200, (_scale(found[0]) if sub else _object(found[0]))

    def _write(self, workload: Workload, sent: dict[str, Any]) -> Answer:
        self.bodies.append(sent)
        if (sent.get("apiVersion"), sent.get("kind")) != ("autoscaling/v1", "Scale"):
            return _status(400, f"no kind {sent.get('kind')!r} is registered")
        metadata = sent["metadata"]
        changed = metadata.get("resourceVersion", str(workload.version)) != str(workload.version)
        if changed or metadata.get("uid", workload.uid) != workload.uid:
            return _status(
                409,
                f'Operation cannot be fulfilled on {workload.plural}.apps "{workload.name}": the object has '
                "been modified; please apply your changes to the latest version and try again",
            )
        workload.replicas = sent["spec"].get("replicas", 0)
        workload.touch()
        return 200, _scale(workload)


def _metadata(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "namespace": workload.namespace,
        "uid": workload.uid,
        "resourceVersion": str(workload.version),
        "creationTimestamp": "2026-11-01T10:00:00Z",
    }


def _scale(workload: Workload) -> dict[str, Any]:
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": _metadata(workload),
        "spec": {"replicas": workload.replicas} if workload.replicas else {},
        "status": {"replicas": workload.ready, "selector": f"app={workload.name}"},
    }


def _object(workload: Workload) -> dict[str, Any]:
    labels = {"app": workload.name}
    status = {"observedGeneration": 1, "replicas": workload.ready, "aFieldOfTomorrow": {"x": 1}}
    return {
        "kind": KINDS[workload.plural],
        "apiVersion": "apps/v1",
        "metadata": _metadata(workload),
        "spec": {
            "replicas": workload.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "worker"}]}},
            **({"serviceName": ""} if workload.plural == "statefulsets" else {}),
        },
        "status": status | ({"readyReplicas": workload.ready} if workload.ready else {}),
    }


def _status(code: int, message: str) -> Answer:
    reason = REASONS[code]
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _head(status: int, *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", *headers, "", "")).encode()


# ------------------------------------------------------------- fixtures: an API server, and a back end

#: Pauses of a few milliseconds, so that a test of eight attempts is quick. The other limits are generous.
QUICK = KubernetesLimits(first_pause=0.001, longest_pause=0.002)
#: Two tiers in a cluster.
CONFIGURATION = """
name = "{name}"
url = "{url}"
[jobs.work]
queue = "{name}-work"
service_time = "30s"
[deployments.media]
jobs = ["work"]
backend = "kubernetes"
workers_per_unit = 2
kubernetes = {{ namespace = "prod", kubeconfig = "{kubeconfig}" }}
[[deployments.media.tiers]]
name = "steady"
max_units = 4
[[deployments.media.tiers]]
name = "spot"
preemptible = true
kubernetes = {{ name = "media-spot" }}
"""


@pytest.fixture
async def cluster() -> AsyncIterator[KubernetesServer]:
    async with KubernetesServer([Workload("media", replicas=3, ready=2)]).serving() as one:
        yield one


@pytest.fixture
def kubeconfig(cluster: KubernetesServer, tmp_path: Path) -> str:
    file = tmp_path / "config"
    file.write_text(cluster.kubeconfig())
    return str(file)


@pytest.fixture
async def open_media(kubeconfig: str) -> AsyncIterator[Callable[..., KubernetesBackend]]:
    """Give a function that opens a back end of the object `media`, which is closed after the test."""
    opened: list[KubernetesBackend] = []

    def open_backend(limits: KubernetesLimits = QUICK, **settings: Any) -> KubernetesBackend:
        given = {"name": "media", "namespace": "prod", "kubeconfig": kubeconfig, **settings}
        opened.append(KubernetesBackend("media/spot", KubernetesSettings(**given), limits=limits))
        return opened[-1]

    yield open_backend
    for one in opened:
        await one.close()


@pytest.fixture
def backend(open_media: Callable[..., KubernetesBackend]) -> KubernetesBackend:
    return open_media()


@pytest.fixture
def media(cluster: KubernetesServer) -> Workload:
    return cluster.workloads[0]
