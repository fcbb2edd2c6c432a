"""What surrounds every request: the headers of each answer, and the refusal of cross-site writes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Nothing is inline and nothing is loaded from elsewhere, so no nonce is needed.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-robots-tag": "noindex",
    "cache-control": "no-store",
}
_SAFE = {"GET", "HEAD", "OPTIONS"}
_REFUSAL = (
    "This request was sent by the page of another site, so it was refused and nothing was changed. "
    "If a proxy changes the Host header, have it send the one that the browser sent."
)


class Guard:
    """Wraps the application. It needs no token, cookie or session: see `is_cross_site`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a cross-site write; else answer, with the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = scope["method"] not in _SAFE and is_cross_site(Headers(scope=scope))
        answer = PlainTextResponse(_REFUSAL, 403) if refused else self._app
        await answer(scope, receive, send_with_headers)


def is_cross_site(headers: Headers) -> bool:
    """Return whether the page of another site has sent a request.

    Browsers say so in Sec-Fetch-Site, which pages cannot set. Over plain HTTP they leave it out, and send
    Origin, whose host is then that of the request. A client that sends neither is no browser.
    """
    if (site := headers.get("sec-fetch-site")) is not None:
        return site not in {"same-origin", "none"}
    if (origin := headers.get("origin")) is not None:
        try:
            return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
        except ValueError:
            return True
    return False
