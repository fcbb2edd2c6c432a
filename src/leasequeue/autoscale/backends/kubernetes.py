"""Pods as units: the replicas of a Deployment or StatefulSet of Kubernetes, through its scale subresource."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

from leasequeue.errors import BackendError, ExtraMissing
from leasequeue.errors.describing import describe

try:
    import httpx2
    from lightkube import AsyncClient, ConfigError, KubeConfig
    from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT
    from lightkube.models.autoscaling_v1 import ScaleSpec
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.apps_v1 import Deployment, DeploymentScale, StatefulSet, StatefulSetScale
except ImportError as error:
    raise ExtraMissing("back ends for Kubernetes", "kubernetes") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue.autoscale.config import KubernetesSettings

T = TypeVar("T")

#: How often a call is tried in all while other clients change the object, or the API server fails.
ATTEMPTS: Final = 8

#: What lightkube raises for an answer that is an error, or that is none of Kubernetes at all: it looks for a
#: content type (KeyError) and decodes JSON (ValueError). A program that gives it credentials may fail, too.
_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, ConfigError, KeyError, ValueError, OSError)


@dataclass(frozen=True, kw_only=True)
class KubernetesLimits:
    """How long to try. Seconds."""

    #: For how long one request may be silent.
    request: float = 4.0
    #: How long one call may take, with all its attempts. The loop cancels it a second later.
    call: float = 9.0
    #: The pause before the second attempt, which doubles from there on, and the longest pause.
    first_pause: float = 0.05
    longest_pause: float = 1.0


_LIMITS: Final = KubernetesLimits()


class KubernetesBackend:
    """Scales one Deployment or StatefulSet. A unit is a pod.

    Requests use optimistic concurrency: a change by another client in between is seen, and the request is
    made again on top of it, `ATTEMPTS` times in all. Errors of the API server and of the network are tried
    again as often, and a call takes `limits.call` at most. Nothing else of the object is changed.
    """

    def __init__(
        self, target: str, settings: KubernetesSettings, *, limits: KubernetesLimits = _LIMITS
    ) -> None:
        self._target = target
        self._settings = settings
        self._name, self._namespace = settings.name, settings.namespace
        self._limits = limits
        self._client: AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def ready(self) -> int:
        """Return how many of its pods are ready."""
        status = (await self._call(self._read)).status
        # Kubernetes leaves out what is 0.
        return (status.readyReplicas or 0) if status else 0

    async def requested(self) -> int:
        """Return how many pods it is to have: `spec.replicas`, whichever client has set it."""
        return _replicas(await self._call(self._read_scale))

    async def request(self, units: int) -> None:
        """Set `spec.replicas`. Without a change, nothing is written. An object that does not exist has 0."""

        async def change(client: AsyncClient) -> None:
            try:
                found = await self._read_scale(client)
            except _ERRORS as error:
                response = _response_of(error)
                if units == 0 and response is not None and response.status_code == HTTPStatus.NOT_FOUND:
                    return
                raise
            if _replicas(found) != units:
                await self._write_scale(client, found, units)

        await self._call(change)

    async def close(self) -> None:
        """Disconnect. The pods keep running. Closing twice is fine."""
        client, self._client = self._client, None
        if client:
            await client.close()

    # ------------------------------------------------------------------------------------------- requests

    async def _read(self, client: AsyncClient) -> Deployment | StatefulSet:
        if self._settings.kind == "Deployment":
            return await client.get(Deployment, self._name, namespace=self._namespace)
        return await client.get(StatefulSet, self._name, namespace=self._namespace)

    async def _read_scale(self, client: AsyncClient) -> DeploymentScale | StatefulSetScale:
        if self._settings.kind == "Deployment":
            return await client.get(DeploymentScale, self._name, namespace=self._namespace)
        return await client.get(StatefulSetScale, self._name, namespace=self._namespace)

    async def _write_scale(
        self, client: AsyncClient, found: DeploymentScale | StatefulSetScale, units: int
    ) -> None:
        """Set the number, if the object is still the one that was read, in the version that was read."""
        read = found.metadata or ObjectMeta()
        metadata = ObjectMeta(
            name=self._name, namespace=self._namespace, uid=read.uid, resourceVersion=read.resourceVersion
        )
        scale = type(found)(metadata=metadata, spec=ScaleSpec(replicas=units))
        await client.replace(scale, self._name, namespace=self._namespace)

    # ------------------------------------------------------------------------------------------- attempts

    async def _call(self, step: Callable[[AsyncClient], Awaitable[T]]) -> T:
        problem = "no answer"
        cause: Exception | None = None
        try:
            async with asyncio.timeout(self._limits.call):
                for attempt in range(1, ATTEMPTS + 1):
                    client = await self._connected()
                    try:
                        return await step(client)
                    except _ERRORS as error:
                        response = _response_of(error)
                        if response is not None and not _may_pass(response):
                            raise self._error(self._refusal(response)) from error
                        problem = (
                            _said(response)
                            if response is not None
                            else f"{describe(error)}, {client.config.cluster.server}"
                        )
                        cause = error
                    if attempt < ATTEMPTS:
                        await asyncio.sleep(self._pause(attempt, response))
        except TimeoutError as error:
            raise self._error(f"no success within {self._limits.call:g} s; at last: {problem}") from error
        raise self._error(f"no success in {ATTEMPTS} attempts; at last: {problem}") from cause

    async def _connected(self) -> AsyncClient:
        """Return the client. Files are read and certificates are loaded in a thread."""
        async with self._opening:
            if self._client is None:
                try:
                    self._client = await asyncio.to_thread(_client, self._settings, self._limits.request)
                except Exception as error:
                    # Whatever is wrong with a kubeconfig: lightkube does not check its form.
                    raise self._error(f"no connection can be made: {describe(error)}") from error
            return self._client

    def _pause(self, attempt: int, response: httpx2.Response | None) -> float:
        """Return how long to wait after an attempt (s): as the server says, or longer each time."""
        if response is not None and (asked := response.headers.get("Retry-After", "")).isdecimal():
            return float(asked)
        longest = min(self._limits.longest_pause, self._limits.first_pause * 2 ** (attempt - 1))
        return random.uniform(longest / 2, longest)  # noqa: S311 - it only keeps two clients apart

    # --------------------------------------------------------------------------------------------- errors

    def _error(self, problem: str) -> BackendError:
        where = f"{self._settings.kind} {self._name} in namespace {self._namespace}"
        return BackendError("kubernetes", self._target, f"{where}: {problem}")

    def _refusal(self, response: httpx2.Response) -> str:
        """Say what the API server refuses, and what to do."""
        plural = f"{self._settings.kind.lower()}s" + (
            "/scale" if response.url.path.endswith("/scale") else ""
        )
        verb = {"GET": "get", "PUT": "update"}.get(response.request.method, response.request.method)
        match response.status_code:
            case 401:
                advice = "the API server does not accept these credentials. Renew them"
            case 403:
                advice = (
                    f"the right to {verb} {plural} is missing. Grant it: "
                    "docs/examples/kubernetes/deployments.yaml has a role"
                )
            case 404:
                advice = "there is none. Create it, or correct `name` and `namespace` in the configuration"
            case code:
                advice = f"the API server refuses to {verb} {plural} with {code}"
        return f"{advice} ({_said(response)})"


def _client(settings: KubernetesSettings, request_seconds: float) -> AsyncClient:
    if settings.kubeconfig or settings.context:
        file = settings.kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
        config = KubeConfig.from_file(file).get(settings.context)
    else:
        config = KubeConfig.from_env(SERVICE_ACCOUNT).get()
    if config is None:
        raise ConfigError("the kubeconfig has no current context")
    return AsyncClient(config, timeout=httpx2.Timeout(request_seconds), field_manager="leasequeue-autoscaler")


def _replicas(scale: DeploymentScale | StatefulSetScale) -> int:
    """Return the number that was asked for. Kubernetes leaves it out if it is 0."""
    return (scale.spec.replicas or 0) if scale.spec else 0


def _response_of(error: BaseException) -> httpx2.Response | None:
    """Return the response that is an error, also when lightkube could not decode its body."""
    found: BaseException | None = error
    while isinstance(found, (KeyError, ValueError, StopIteration)):
        found = found.__context__
    return found.response if isinstance(found, httpx2.HTTPStatusError) else None


def _may_pass(response: httpx2.Response) -> bool:
    """Return whether another attempt may succeed: another client was quicker, or the server cannot now."""
    return response.status_code in (409, 429) or response.status_code >= 500


def _said(response: httpx2.Response) -> str:
    try:
        message = response.json()["message"]
    except (ValueError, TypeError, KeyError, LookupError):
        message = response.text.strip()
    return f"{response.status_code}: {str(message)[:500] or response.reason_phrase}"
