"""A server with TLS, and the certificates that it and its clients use.

It is Debian's redis-server: the servers of wheels are built without TLS.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import trustme

from tests.ports import free_port
from tests.processes import answering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Files of certificates: those of the server, of a client, and of another authority.

    Attributes:
        folder: Where they are: `NAME.pem` and `NAME.key` of `server`, `client` and `stranger`, and the
            certificates of both authorities, `authority.pem` and `other.pem`.
    """

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Write them. The server's is for `localhost` only."""
        authority, other = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(folder / "authority.pem")
        other.cert_pem.write_to_path(folder / "other.pem")
        for name, made in (
            ("server", authority.issue_cert("localhost")),
            ("client", authority.issue_cert("client@example.org")),
            ("stranger", other.issue_cert("client@example.org")),
        ):
            made.private_key_pem.write_to_path(folder / f"{name}.key")
            made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        return cls(folder)

    def of(self, name: str) -> dict[str, str]:
        """Return the parameters of a URL for a client that has this certificate."""
        return {
            "ssl_certfile": str(self.folder / f"{name}.pem"),
            "ssl_keyfile": str(self.folder / f"{name}.key"),
        }

    def trusting(self, authority: str = "authority") -> dict[str, str]:
        """Return the parameter of a URL for a client that trusts this authority."""
        return {"ssl_ca_certs": str(self.folder / f"{authority}.pem")}


@dataclass(frozen=True)
class TlsServer:
    """A running server.

    Attributes:
        port: Its port with TLS.
        plain_port: Its port without.
        certificates: What it uses.
    """

    port: int
    plain_port: int
    certificates: Certificates

    def url(self, *parameters: dict[str, str], host: str = "localhost") -> str:
        """Return a URL for its port with TLS."""
        given = {name: value for one in parameters for name, value in one.items()}
        return f"rediss://{host}:{self.port}?{urlencode(given)}"


@asynccontextmanager
async def running(certificates: Certificates, *, asks_clients: bool) -> AsyncIterator[TlsServer]:
    """Run a server inside the block.

    Args:
        certificates: Its certificate, and the authority that it trusts.
        asks_clients: Whether a client needs a certificate.

    Raises:
        ServerMissing: If the program is not installed.
    """
    first = free_port(2)
    server = TlsServer(first, first + 1, certificates)
    options = {
        "port": server.plain_port,
        "tls-port": server.port,
        "tls-cert-file": certificates.folder / "server.pem",
        "tls-key-file": certificates.folder / "server.key",
        "tls-ca-cert-file": certificates.folder / "authority.pem",
        "tls-auth-clients": "yes" if asks_clients else "no",
        "save": "",
        "dir": certificates.folder,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    async with answering("redis7", server.plain_port, *words):
        yield server
