"""The back end for Kubernetes, against an API server that speaks real HTTP."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from typing import TYPE_CHECKING, TypeAlias

import pytest
import trustme
from lightkube import KubeConfig

from leasequeue.autoscale import Autoscaler
from leasequeue.autoscale.backends import kubernetes, open_backend
from leasequeue.autoscale.backends.kubernetes import ATTEMPTS, KubernetesBackend, KubernetesLimits
from leasequeue.autoscale.config import KubernetesSettings, load_config
from leasequeue.errors import BackendError
from tests.autoscale.kubernetes_server import (
    CONFIGURATION,
    QUICK,
    Fault,
    KubernetesServer,
    Workload,
    backend,
    cluster,
    kubeconfig,
    media,
    open_media,
)
from tests.autoscale.scaling import add_items
from tests.cli.program import run_process
from tests.queue.fixtures import tidy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leasequeue.autoscale.backends import Backend

__all__ = ["backend", "cluster", "kubeconfig", "media", "open_media", "tidy"]

OpenMedia: TypeAlias = "Callable[..., KubernetesBackend]"


SCALE = "/apis/apps/v1/namespaces/prod/deployments/media/scale"
ASKS_FOR_TIME = Fault(status=429, headers=("Retry-After: 600",))
UNAVAILABLE = Fault(status=503, body=b"{}", headers=("Content-Type: application/json",))


# ----------------------------------------------------------------------------------------------- the protocol


@pytest.mark.seed("RWQ-O24")
async def test_it_is_a_back_end(backend: KubernetesBackend, media: Workload) -> None:
    protocol: Backend = backend
    assert (await protocol.ready(), await protocol.requested()) == (2, 3)
    await protocol.request(7)
    assert (media.replicas, await protocol.ready(), await protocol.requested()) == (7, 2, 7)
    media.ready = 0
    for units in (1, 100_000, 0):  # what is 0 is left out by Kubernetes, in its answers
        await protocol.request(units)
        assert (await protocol.ready(), await protocol.requested()) == (0, units)
    await protocol.close()
    await protocol.close()


@pytest.mark.seed("RWQ-K7")
async def test_a_tier_of_a_configuration_leads_to_its_object(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path
) -> None:
    cluster.workloads.append(Workload("resize-spot", namespace="night", plural="statefulsets", ready=7))
    file = tmp_path / "autoscale.toml"
    file.write_text(
        f"""
        name = "auto"
        [jobs.resize]
        [deployments.resize]
        backend = "kubernetes"
        [[deployments.resize.tiers]]
        name = "spot"
        kubernetes.namespace = "night"
        kubernetes.name = "resize-spot"
        kubernetes.kind = "StatefulSet"
        kubernetes.kubeconfig = "{kubeconfig}"
        """
    )
    opened = open_backend(load_config(file), "resize", "spot")
    await opened.request(5)
    assert (await opened.ready(), await opened.requested()) == (7, 5)
    assert [one.replicas for one in cluster.workloads] == [3, 5]
    await opened.close()


@pytest.mark.seed("RWQ-O22", "RWQ-O24", "RWQ-K7")
async def test_a_pass_scales_two_tiers_and_goes_on_when_one_is_missing(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path, redis_url: str, name: str
) -> None:
    file = tmp_path / "autoscale.toml"
    file.write_text(CONFIGURATION.format(name=name, url=redis_url, kubeconfig=kubeconfig))
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(load_config(file)) as autoscaler:
        report = await autoscaler.once()
        steady, spot = report.tiers
        assert (steady.wanted, cluster.workloads[0].replicas) == (4, 4)
        assert [
            error.problem
            for error in report.errors
            if "media-spot in namespace prod: there is none" in error.problem
        ]
        cluster.workloads.append(Workload("media-spot", replicas=0))
        report = await autoscaler.once()
        steady, spot = report.tiers
        assert report.errors == ()
        # 20 items of 30 s within a minute need 10 workers, and a pod has two.
        assert spot.wanted >= 1
        assert cluster.workloads[1].replicas == spot.wanted


@pytest.mark.slow
async def test_the_command_scales_and_logs_no_request(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path, redis_url: str, name: str
) -> None:
    cluster.workloads.append(Workload("media-spot", replicas=0))
    file = tmp_path / "autoscale.toml"
    file.write_text(CONFIGURATION.format(name=name, url=redis_url, kubeconfig=kubeconfig))
    await add_items(redis_url, f"{name}-work", 20)
    code, out, err = await run_process("autoscale", str(file), "--once")
    assert code == 0, err
    assert all(one.replicas for one in cluster.workloads[1:])
    assert "media/spot" in out
    assert "HTTP" not in out + err


async def test_the_same_number_writes_nothing(
    backend: KubernetesBackend, cluster: KubernetesServer, media: Workload
) -> None:
    await backend.request(3)
    assert cluster.requests == [("GET", SCALE)]
    assert media.version == 100


async def test_a_request_changes_the_scale_alone(
    backend: KubernetesBackend, cluster: KubernetesServer, media: Workload
) -> None:
    await backend.request(4)
    assert cluster.requests == [("GET", SCALE), ("PUT", SCALE)]
    [sent] = cluster.bodies
    assert sent["spec"] == {"replicas": 4}
    assert sent["metadata"] == {
        "name": "media",
        "namespace": "prod",
        "uid": media.uid,
        "resourceVersion": "100",
    }


# -------------------------------------------------------------------------------------------------- conflicts


@pytest.mark.seed("RWQ-O24")
@pytest.mark.parametrize("conflicts", [1, ATTEMPTS - 1])
async def test_a_conflict_is_read_and_tried_again(
    backend: KubernetesBackend, cluster: KubernetesServer, media: Workload, conflicts: int
) -> None:
    changes = iter(range(conflicts))

    def its_controller() -> None:
        if next(changes, None) is not None:
            media.touch()

    cluster.before_write = its_controller
    await backend.request(9)
    assert media.replicas == 9
    assert cluster.requests == [("GET", SCALE), ("PUT", SCALE)] * (conflicts + 1)


@pytest.mark.seed("RWQ-O24")
async def test_after_eight_conflicts_it_gives_up(
    backend: KubernetesBackend, cluster: KubernetesServer, media: Workload
) -> None:
    cluster.before_write = media.touch
    with pytest.raises(
        BackendError, match=r"no success in 8 attempts; at last: 409: Operation cannot"
    ) as caught:
        await backend.request(9)
    assert (caught.value.backend, caught.value.target) == ("kubernetes", "media/spot")
    assert media.replicas == 3
    assert len(cluster.bodies) == 8


async def test_a_number_that_another_client_has_set_meanwhile_is_not_written_again(
    backend: KubernetesBackend, cluster: KubernetesServer, media: Workload
) -> None:
    def another() -> None:
        media.replicas = 9
        media.touch()

    cluster.before_write = another
    await backend.request(9)
    assert len(cluster.bodies) == 1


async def test_an_object_that_was_made_anew_is_not_scaled_by_what_was_read_of_the_old_one(
    backend: KubernetesBackend, cluster: KubernetesServer
) -> None:
    def replace() -> None:
        cluster.before_write = None
        cluster.workloads[:] = [Workload("media", replicas=9, uid="another")]

    cluster.before_write = replace
    await backend.request(9)
    assert len(cluster.bodies) == 1, "rejected, although the version is the same"


# ----------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "fault",
    [
        UNAVAILABLE,
        Fault(status=429, headers=("Retry-After: 0",)),
        Fault(status=500, body=b"etcdserver: leader changed", headers=("Content-Type: text/plain",)),
        Fault(status=502, body=b"<html>bad gateway</html>"),
        Fault(status=504, body=b"", headers=("Content-Type: application/json",)),
        Fault(status=500, body=b'{"message": 3, "code": []}', headers=("Content-Type: application/json",)),
        Fault(status=200, body=b"<html>hello</html>", headers=("Content-Type: application/json",)),
        Fault(cut=True),
    ],
)
async def test_what_passes_is_tried_again(
    backend: KubernetesBackend, cluster: KubernetesServer, media: Workload, fault: Fault
) -> None:
    cluster.faults = [fault, fault]
    assert await backend.ready() == 2
    cluster.faults = [fault, None, fault]
    await backend.request(6)
    assert (media.replicas, cluster.faults) == (6, [])


async def test_a_lost_reply_does_not_write_twice(
    backend: KubernetesBackend, cluster: KubernetesServer, media: Workload
) -> None:
    cluster.faults = [None, Fault(cut=True, applied=True)]
    await backend.request(6)
    assert (media.replicas, len(cluster.bodies)) == (6, 1)


async def test_a_silent_server_is_tried_again(
    cluster: KubernetesServer, open_media: OpenMedia, media: Workload
) -> None:
    backend = open_media(KubernetesLimits(request=0.1, call=60, first_pause=0.001))
    cluster.faults = [Fault(silent=True), None, Fault(silent=True, applied=True)]
    await backend.request(6)
    assert (media.replicas, len(cluster.bodies)) == (6, 1)


@pytest.mark.parametrize(
    ("fault", "limits", "says"),
    [
        (Fault(silent=True), KubernetesLimits(request=60, call=0.2), r"no success within 0\.2 s"),
        # It asks for more time than there is.
        (ASKS_FOR_TIME, KubernetesLimits(call=0.2, first_pause=0.001), r"within 0\.2 s; at last: 429"),
    ],
)
async def test_a_call_ends_at_its_limit(
    cluster: KubernetesServer, open_media: OpenMedia, fault: Fault, limits: KubernetesLimits, says: str
) -> None:
    cluster.faults = [fault] * 20
    with pytest.raises(BackendError, match=says):
        await open_media(limits).ready()
    assert len(cluster.requests) == 1


async def test_a_server_that_is_down_is_an_error_that_names_it(
    backend: KubernetesBackend, cluster: KubernetesServer, tmp_path: Path
) -> None:
    cluster.port = 1
    (tmp_path / "config").write_text(cluster.kubeconfig())
    with pytest.raises(BackendError, match=r"8 attempts; at last: ConnectError: .*, http://127\.0\.0\.1:1$"):
        await backend.requested()


@pytest.mark.parametrize("call", ["ready", "requested", "request"])
async def test_a_deployment_that_vanishes_is_an_error_that_names_it(
    backend: KubernetesBackend, cluster: KubernetesServer, call: str
) -> None:
    assert await backend.ready() == 2
    gone = cluster.workloads.pop()
    with pytest.raises(BackendError) as caught:
        await (backend.request(5) if call == "request" else getattr(backend, call)())
    assert str(caught.value) == (
        "kubernetes, media/spot: Deployment media in namespace prod: there is none. Create it, or correct "
        "`name` and `namespace` in the configuration (404: "
        f'{"deployments" if call == "ready" else "deployments/scale"}.apps "media" not found)'
    )
    cluster.workloads.append(gone)
    assert await backend.ready() == 2


async def test_a_deployment_that_vanishes_before_the_write_is_an_error(
    backend: KubernetesBackend, cluster: KubernetesServer
) -> None:
    cluster.before_write = cluster.workloads.clear
    with pytest.raises(BackendError, match="there is none"):
        await backend.request(5)


@pytest.mark.parametrize(
    ("verb", "resource", "call"),
    [
        ("get", "deployments", "ready"),
        ("get", "deployments/scale", "requested"),
        ("update", "deployments/scale", "request"),
    ],
)
async def test_a_missing_right_is_named(
    backend: KubernetesBackend, cluster: KubernetesServer, verb: str, resource: str, call: str
) -> None:
    cluster.denied = {(verb, resource)}
    with pytest.raises(
        BackendError, match=f"the right to {verb} {resource} is missing. Grant it: "
    ) as caught:
        await (backend.request(5) if call == "request" else getattr(backend, call)())
    assert f'cannot {verb} resource "{resource}"' in caught.value.problem
    assert len(cluster.requests) <= 2, "it is not tried again"


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("text/plain", b"too many", r" \(422: too many\)"),
        *(("application/json", body, "") for body in (b"", b"none", b'{"code": "422"}', b"[]")),
    ],
)
async def test_anything_else_that_is_refused_is_not_tried_again(
    backend: KubernetesBackend, cluster: KubernetesServer, kind: str, body: bytes, reason: str
) -> None:
    cluster.faults = [None, Fault(status=422, body=body, headers=(f"Content-Type: {kind}",))]
    with pytest.raises(BackendError, match=f"refuses to update deployments/scale with 422{reason}"):
        await backend.request(5)
    assert len(cluster.requests) == 2


# -------------------------------------------------------------------------- credentials and kubeconfigs


async def test_credentials_that_are_not_accepted_are_an_error(
    backend: KubernetesBackend, cluster: KubernetesServer
) -> None:
    cluster.accepted = "another"
    with pytest.raises(BackendError, match="does not accept these credentials"):
        await backend.ready()


async def test_a_program_may_give_the_credentials(
    cluster: KubernetesServer, open_media: OpenMedia, tmp_path: Path
) -> None:
    cluster.accepted = "made"
    exec_: dict[str, object] = {"apiVersion": "client.authentication.k8s.io/v1beta1"}
    exec_["command"] = str(tmp_path / "absent")
    (tmp_path / "config").write_text(cluster.kubeconfig(exec=exec_))
    with pytest.raises(BackendError, match="FileNotFoundError"):
        await open_media().ready()
    exec_ |= {"command": sys.executable, "args": ["-c", 'print(\'{"status": {"token": "made"}}\')']}
    (tmp_path / "config").write_text(cluster.kubeconfig(exec=exec_))
    assert await open_media().ready() == 2


async def test_inside_a_pod_its_account_is_used_and_a_rotated_token_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("prod")
    cluster = KubernetesServer([Workload("media", ready=4)], accepted="first")
    async with cluster.serving(tls):
        monkeypatch.setattr(kubernetes, "SERVICE_ACCOUNT", str(tmp_path))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.port))
        backend = KubernetesBackend(
            "media/spot", KubernetesSettings(name="media", namespace="prod"), limits=QUICK
        )
        assert await backend.ready() == 4
        cluster.accepted = "second"
        (tmp_path / "token").write_text("second\n")
        assert await backend.ready() == 4
        await backend.close()


@pytest.mark.parametrize(
    "text",
    [None, "{", "[]", "{}", '{"clusters": null, "contexts": 3}', '{"clusters": [], "contexts": []}'],
)
async def test_a_kubeconfig_that_is_none_is_an_error_until_it_is_one(
    cluster: KubernetesServer, open_media: OpenMedia, tmp_path: Path, text: str | None
) -> None:
    file, backend = tmp_path / "other", open_media(kubeconfig=str(tmp_path / "other"))
    if text is not None:
        file.write_text(text)
    with pytest.raises(BackendError, match="Deployment media in namespace prod: no connection can be made: "):
        await backend.ready()
    file.write_text(cluster.kubeconfig())
    assert await backend.ready() == 2


async def test_a_context_is_one_of_the_file_that_the_environment_names(
    kubeconfig: str, open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    for context in (None, "here"):
        assert await open_media(kubeconfig=None, context=context).ready() == 2
    # One that is not there, and one without a user.
    for context, says in (("nowhere", "Context 'nowhere' not found"), ("elsewhere", "no connection can")):
        with pytest.raises(BackendError, match=says):
            await open_media(kubeconfig=None, context=context).ready()


async def test_files_are_read_and_certificates_loaded_in_a_thread(
    backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = KubeConfig.from_file
    threads = []

    def watched(file: str) -> KubeConfig:
        threads.append(threading.get_ident())
        return read(file)

    monkeypatch.setattr(KubeConfig, "from_file", watched)
    await asyncio.gather(backend.ready(), backend.requested())
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


async def test_a_cancelled_call_leaves_a_back_end_that_works(
    backend: KubernetesBackend, cluster: KubernetesServer
) -> None:
    cluster.faults = [Fault(silent=True)]
    call = asyncio.create_task(backend.ready())
    await cluster.arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await backend.ready() == 2
