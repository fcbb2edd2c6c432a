"""How the back end for Kubernetes connects: credentials, kubeconfigs, the account of a pod."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import trustme
from lightkube import KubeConfig

from leasequeue.autoscale.backends import kubernetes
from leasequeue.autoscale.backends.kubernetes import KubernetesBackend
from leasequeue.errors import BackendError
from tests.autoscale.kubernetes_fixtures import QUICK, backend, cluster, kubeconfig
from tests.autoscale.kubernetes_server import Fault, KubernetesServer, Workload
from tests.queue.fixtures import tidy

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["backend", "cluster", "kubeconfig", "tidy"]


async def test_credentials_that_are_not_accepted_are_an_error(
    backend: KubernetesBackend, cluster: KubernetesServer
) -> None:
    cluster.accepted = "another"
    with pytest.raises(BackendError, match="does not accept these credentials"):
        await backend.ready()


async def test_a_program_may_give_the_credentials(
    cluster: KubernetesServer, backend: KubernetesBackend, tmp_path: Path
) -> None:
    cluster.accepted = "made"
    program = 'print(\'{"status": {"token": "made"}}\')'
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": ["-c", program],
    }
    (tmp_path / "config").write_text(cluster.kubeconfig(exec=exec_))
    assert await backend.ready() == 2


async def test_a_program_that_gives_none_is_an_error(
    cluster: KubernetesServer, backend: KubernetesBackend, tmp_path: Path
) -> None:
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(tmp_path / "absent")}
    (tmp_path / "config").write_text(cluster.kubeconfig(exec=exec_))
    with pytest.raises(BackendError, match="FileNotFoundError"):
        await backend.ready()


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
        backend = KubernetesBackend("media/spot", name="media", namespace="prod", limits=QUICK)
        assert await backend.ready() == 4
        cluster.accepted = "second"
        (tmp_path / "token").write_text("second\n")
        assert await backend.ready() == 4
        await backend.close()


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (None, None),
        ("{", None),
        ("[]", None),
        ("{}", None),
        ('{"clusters": null, "contexts": 3}', None),
        ('{"clusters": [], "contexts": []}', None),
        ("here", "no-such-context"),
        ("here", "elsewhere"),
    ],
)
async def test_a_kubeconfig_that_is_none_is_an_error_until_it_is_one(
    cluster: KubernetesServer, tmp_path: Path, text: str | None, context: str | None
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(cluster.kubeconfig() if text == "here" else text)
    backend = KubernetesBackend(
        "media/spot", name="media", namespace="prod", kubeconfig=str(file), context=context, limits=QUICK
    )
    with pytest.raises(BackendError, match="Deployment media in namespace prod: no connection can be made: "):
        await backend.ready()
    if context is None:
        file.write_text(cluster.kubeconfig())
        assert await backend.ready() == 2
    await backend.close()


async def test_a_context_is_one_of_the_file_that_the_environment_names(
    kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    for context in (None, "here"):
        backend = KubernetesBackend("media/spot", name="media", namespace="prod", context=context)
        assert await backend.ready() == 2
        await backend.close()
    backend = KubernetesBackend("media/spot", name="media", namespace="prod", context="nowhere")
    with pytest.raises(BackendError, match="Context 'nowhere' not found"):
        await backend.ready()


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
