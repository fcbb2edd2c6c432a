"""A real API server of Kubernetes with its etcd. Nothing runs pods: the tests write their status."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import urllib.request
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from lightkube import AsyncClient, KubeConfig

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Built by `make test-kubernetes`.
PROGRAM = Path(__file__).parents[2] / "build" / "kubernetes" / "kube-apiserver"
#: The administrator of the tests, who may do everything.
ADMINISTRATOR = "administrator"


@dataclass
class ApiServer:
    """A running API server.

    Attributes:
        folder: Its files.
        port: Where it listens, with TLS.
    """

    folder: Path
    port: int
    etcd_port: int
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificates that its own is checked with."""
        return self.folder / "certificates" / "apiserver.crt"

    def kubeconfig(self, token: str = ADMINISTRATOR) -> Path:
        """Write a kubeconfig that leads here, and return its path."""
        file = self.folder / "kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        context = {"cluster": "here", "user": "me"}
        file.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "clusters": [{"name": "here", "cluster": cluster}],
                    "users": [{"name": "me", "user": {"token": token}}],
                    "contexts": [{"name": "here", "context": context}],
                }
            )
        )
        return file

    def client(self) -> AsyncClient:
        """Return a client of the administrator."""
        return AsyncClient(KubeConfig.from_file(self.kubeconfig()).get())

    def account(self, token: str) -> Path:
        """Write what a pod has of its account, and return the folder."""
        folder = self.folder / "account"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "namespace").write_text("prod")
        shutil.copy(self.authority, folder / "ca.crt")
        return folder

    def get(self, path: str, token: str = ADMINISTRATOR) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of an answer, as they are."""
        tls = ssl.create_default_context(cafile=str(self.authority))
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.url + path, headers=headers)  # noqa: S310 - https
        try:
            with urllib.request.urlopen(request, context=tls) as answer:  # noqa: S310 - https
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        key = self.folder / "accounts.key"
        self.process = await _started(
            self.folder / "kube-apiserver.log",
            str(PROGRAM),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://leasequeue.example.org",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            "--service-cluster-ip-range=10.99.0.0/24",
        )
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(self._is_ready):
                assert self.process.returncode is None, (self.folder / "kube-apiserver.log").read_text()[
                    -2000:
                ]
                await asyncio.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            tls = ssl.create_default_context(cafile=str(self.authority))
            with urllib.request.urlopen(f"{self.url}/readyz", context=tls) as answer:  # noqa: S310 - https
                return bool(answer.status == 200)
        except OSError:
            return False

    async def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[ApiServer]:
    """Run etcd and an API server, which `make test-kubernetes` installs."""
    etcd_port = free_port(3)
    peer_port, port = etcd_port + 1, etcd_port + 2
    server = ApiServer(folder, port, etcd_port)
    (folder / "tokens.csv").write_text(f"{ADMINISTRATOR},{ADMINISTRATOR},1,system:masters\n")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    etcd = await _started(
        folder / "etcd.log",
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
    )
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
        etcd.kill()
        await etcd.wait()


async def _started(log: Path, *command: str) -> asyncio.subprocess.Process:
    environment = {"PATH": os.environ["PATH"], "HOME": str(log.parent)}
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)
