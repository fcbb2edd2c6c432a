"""A password in front of an application: HTTP basic authentication."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Password:
    """Asks for a password; any user name will do. Without TLS, others on the network can read it."""

    def __init__(self, app: ASGIApp, password: str) -> None:
        self._app = app
        self._password = password.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with status 401, or as the application does."""
        if scope["type"] == "http" and not self._permits(Headers(scope=scope).get("authorization", "")):
            wanted = {
                "www-authenticate": 'Basic realm="Leasequeue", charset="UTF-8"',
                "cache-control": "no-store",
            }
            await PlainTextResponse("A password is needed.", 401, wanted)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _permits(self, header: str) -> bool:
        kind, _, text = header.partition(" ")
        try:
            given = base64.b64decode(text, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
        return kind.lower() == "basic" and secrets.compare_digest(given, self._password)
