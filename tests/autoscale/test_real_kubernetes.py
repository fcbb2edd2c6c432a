"""The back end, and the example with its role, on a real API server. `make test-kubernetes` builds it."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from lightkube import AsyncClient, codecs
from lightkube.models.apps_v1 import DeploymentStatus
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace, ServiceAccountToken
from lightkube.types import PatchType

from leasequeue.autoscale import Autoscaler
from leasequeue.autoscale.backends import kubernetes
from leasequeue.autoscale.backends.kubernetes import ATTEMPTS, KubernetesBackend, KubernetesLimits
from leasequeue.autoscale.config import KubernetesSettings, load_config
from leasequeue.errors import BackendError
from tests.autoscale.kubernetes_server import CONFIGURATION, KubernetesServer, Workload
from tests.autoscale.real_kubernetes import ADMINISTRATOR, ApiServer, api_server
from tests.autoscale.scaling import add_items
from tests.autoscale.test_kubernetes_examples import DEPLOYMENTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
]

#: A write with an old version.
OUTDATED = {
    "apiVersion": "autoscaling/v1",
    "kind": "Scale",
    "metadata": {"resourceVersion": "1"},
    "spec": {"replicas": 9},
}


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """Return the example's objects, of which the pre-emptible Deployment is a StatefulSet, with the right."""
    found = copy.deepcopy(DEPLOYMENTS)
    [role] = [one for one in found if one["kind"] == "Role"]
    for rule in copy.deepcopy(role["rules"]):
        [resource] = rule["resources"]
        role["rules"].append({**rule, "resources": [resource.replace("deployments", "statefulsets")]})
    [spot] = [one for one in found if one["metadata"]["name"] == "media-spot"]
    spot["kind"] = "StatefulSet"
    spot["spec"] |= {"serviceName": "media-spot", "podManagementPolicy": "Parallel"}
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[dict[str, Any]],
    patched: pytest.MonkeyPatch,
) -> AsyncIterator[ApiServer]:
    """Start an API server, apply the manifests, and be in a pod of the autoscaler, with its account."""
    async with api_server(tmp_path_factory.mktemp("kubernetes")) as one:
        administrator = one.client()
        await administrator.create(Namespace(metadata=ObjectMeta(name="prod")))
        for document in documents:
            await administrator.create(codecs.from_dict(document))
        wanted = ServiceAccountToken(
            metadata=ObjectMeta(namespace="prod"), spec=TokenRequestSpec(audiences=[])
        )
        token = await administrator.create(wanted, "media-autoscaler", namespace="prod")
        assert token.status
        assert token.status.token
        patched.setattr(kubernetes, "SERVICE_ACCOUNT", str(one.account(token.status.token)))
        patched.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        patched.setenv("KUBERNETES_SERVICE_PORT", str(one.port))
        yield one
        await administrator.close()


@pytest.fixture
def account(cluster: ApiServer) -> str:
    """Return the token of the autoscaler's account."""
    return (cluster.folder / "account" / "token").read_text()


@pytest_asyncio.fixture(loop_scope="module")
async def administrator(cluster: ApiServer) -> AsyncIterator[AsyncClient]:
    one = cluster.client()
    yield one
    await one.close()


@pytest_asyncio.fixture(loop_scope="module")
async def media(cluster: ApiServer) -> AsyncIterator[KubernetesBackend]:  # noqa: ARG001 - it must run
    one = KubernetesBackend(
        "media/steady",
        KubernetesSettings(name="media", namespace="prod"),
        limits=KubernetesLimits(first_pause=0.001),
    )
    yield one
    await one.close()


@pytest.mark.seed("RWQ-O27")
async def test_the_api_server_keeps_each_field_of_the_manifests(
    cluster: ApiServer, documents: list[dict[str, Any]]
) -> None:
    for one in documents:
        version, kind = one["apiVersion"], one["kind"]
        base = "/api/v1" if version == "v1" else f"/apis/{version}"
        path = f"{base}/namespaces/prod/{kind.lower()}s/{one['metadata']['name']}"
        status, kept = await asyncio.to_thread(cluster.get, path)
        assert status == 200, path
        assert_holds(kept, one, path)


def assert_holds(kept: Any, sent: Any, place: str) -> None:
    """Check that all of a value was kept. The API server adds defaults."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            assert key in kept, f"{place}.{key} is unknown to the API server"
            assert_holds(kept[key], value, f"{place}.{key}")
    elif isinstance(sent, list):
        assert len(kept) == len(sent), place
        for at, value in enumerate(sent):
            assert_holds(kept[at], value, f"{place}[{at}]")
    else:
        assert kept == sent, place


@pytest.mark.seed("RWQ-O24", "RWQ-K7")
async def test_the_account_of_the_manifests_may_scale(media: KubernetesBackend) -> None:
    for units in (5, 0, 1_000):
        await media.request(units)
        assert await media.requested() == units
    assert await media.ready() == 0


async def test_ready_pods_are_counted(media: KubernetesBackend, administrator: AsyncClient) -> None:
    await media.request(4)
    found = await administrator.get(Deployment, "media", namespace="prod")
    status = DeploymentStatus(replicas=4, readyReplicas=3, updatedReplicas=4, availableReplicas=2)
    written = Deployment.Status(metadata=found.metadata, spec=found.spec, status=status)
    await administrator.replace(written, "media", namespace="prod")
    assert (await media.ready(), await media.requested()) == (3, 4)


@pytest.mark.parametrize("call", ["ready", "requested", "request"])
@pytest.mark.usefixtures("cluster")
async def test_the_account_may_do_nothing_else(call: str) -> None:
    other = KubernetesBackend("mail/default", KubernetesSettings(name="mail", namespace="prod"))
    resource = "deployments" if call == "ready" else "deployments/scale"
    with pytest.raises(BackendError, match=f"the right to get {resource} is missing") as caught:
        await (other.request(1) if call == "request" else getattr(other, call)())
    assert 'User "system:serviceaccount:prod:media-autoscaler" cannot get' in caught.value.problem
    await other.close()


async def test_a_token_that_is_none_is_refused(cluster: ApiServer) -> None:
    backend = KubernetesBackend(
        "m/t",
        KubernetesSettings(name="media", namespace="prod", kubeconfig=str(cluster.kubeconfig("stranger"))),
    )
    with pytest.raises(BackendError, match="does not accept these credentials"):
        await backend.ready()
    await backend.close()


@pytest.mark.parametrize("conflicts", [1, ATTEMPTS - 1, ATTEMPTS])
@pytest.mark.seed("RWQ-O24")
async def test_a_change_between_reading_and_writing_is_a_conflict(
    media: KubernetesBackend, administrator: AsyncClient, monkeypatch: pytest.MonkeyPatch, conflicts: int
) -> None:
    await media.request(1)
    write = media._write_scale
    changes = iter(range(conflicts))

    async def after_another(*arguments: Any) -> None:
        if (number := next(changes, None)) is not None:
            changed = {"metadata": {"annotations": {"change": f"{conflicts}.{number}"}}}
            await administrator.patch(
                Deployment, "media", changed, namespace="prod", patch_type=PatchType.MERGE
            )
        await write(*arguments)

    monkeypatch.setattr(media, "_write_scale", after_another)
    if conflicts < ATTEMPTS:
        await media.request(9)
        assert await media.requested() == 9
    else:
        with pytest.raises(BackendError) as caught:
            await media.request(9)
        said = KubernetesServer([Workload("media")])._write(Workload("media"), OUTDATED)[1]["message"]
        assert caught.value.problem.endswith(f"no success in 8 attempts; at last: 409: {said}")
        assert await media.requested() == 1


@pytest.mark.seed("RWQ-O22", "RWQ-O24")
async def test_a_pass_of_the_autoscaler_scales_both_tiers(
    media: KubernetesBackend, tmp_path: Path, redis_url: str, name: str
) -> None:
    await media.request(0)
    text = CONFIGURATION.replace(', kubeconfig = "{kubeconfig}"', "")
    text = text.replace('"media-spot"', '"media-spot", kind = "StatefulSet"')
    file = tmp_path / "autoscale.toml"
    file.write_text(text.format(name=name, url=redis_url))
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(load_config(file)) as autoscaler:
        report = await autoscaler.once()
        assert report.errors == ()
        assert [tier.wanted for tier in report.tiers] == [4, await autoscaled_spot()]
    assert await media.requested() == 4


async def autoscaled_spot() -> int:
    spot = KubernetesBackend(
        "media/spot", KubernetesSettings(name="media-spot", namespace="prod", kind="StatefulSet")
    )
    try:
        return await spot.requested()
    finally:
        await spot.close()


async def test_the_small_server_of_the_other_tests_answers_as_this_one(
    media: KubernetesBackend, cluster: ApiServer, account: str
) -> None:
    # What other tests rely on: which fields are there, and left out at 0, and how errors look.
    small = KubernetesServer([Workload("media", replicas=0), Workload("mail")])
    await media.request(0)
    for path in ("media/scale", "media", "absent", "absent/scale"):
        await same_answer(small, cluster, path, ADMINISTRATOR)
    small.denied = {("get", "deployments"), ("get", "deployments/scale")}
    for path in ("mail", "mail/scale"):
        await same_answer(small, cluster, path, account)


async def same_answer(small: KubernetesServer, cluster: ApiServer, path: str, token: str) -> None:
    path = f"/apis/apps/v1/namespaces/prod/deployments/{path}"
    status, real = await asyncio.to_thread(cluster.get, path, token)
    ours, made = small._answer("GET", path, {}, b"")
    assert ours == status
    assert (made["kind"], made["apiVersion"]) == (real["kind"], real["apiVersion"])
    if made["kind"] == "Status":
        assert made.items() <= real.items()
    else:
        assert made["metadata"].keys() <= real["metadata"].keys()
        assert ("replicas" in made["spec"]) == ("replicas" in real["spec"])
        assert ("readyReplicas" in made["status"]) == ("readyReplicas" in real["status"])
