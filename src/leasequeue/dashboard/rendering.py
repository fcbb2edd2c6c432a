"""Templates and what they write: times, numbers, texts of others, and lines drawn as SVG."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup
from starlette.responses import Response

from leasequeue.dashboard import charts
from leasequeue.dashboard.view import MAX_LINKED, key_of, segment
from leasequeue.errors import summary_of
from leasequeue.errors.describing import NAME_LENGTH, TEXT_LENGTH, TRACEBACK_LENGTH, indented, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.dashboard.view import View

#: The size of a sparkline in its units: whole ones, which are written three times as fast as fractions.
_WIDTH, _HEIGHT, _BORDER = 1_000, 240, 20
#: What is written where there is no value: a dash that is as wide as a digit.
NOTHING = "\N{EN DASH}"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class Renderer:
    """Makes pages of templates."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._env = jinja2.Environment(
            loader=jinja2.PackageLoader("leasequeue.dashboard"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self._env.filters |= {
            "plain": lambda text: plain(str(text), NAME_LENGTH),
            "text": lambda text: plain(str(text), TEXT_LENGTH),
            "lines": lambda text: indented(str(text), TRACEBACK_LENGTH, indent=""),
            "summary": summary_of,
            "number": number,
            "rate": rate,
            "duration": duration,
            "ago": ago,
            "since": lambda at: duration(max(0.0, time.time() - at)),
            "left": lambda at: duration(max(0.0, at - time.time())),
            "segment": segment,
        }
        self._env.tests["linked"] = lambda name: len(name) <= MAX_LINKED
        self._env.globals |= {**facts, "sparkline": sparkline, "charts": charts, "key_of": key_of}

    def page(self, template: str, view: View, facts: Mapping[str, Any], status: int = 200) -> Response:
        """Return a page; status 304 if the viewer has just this one."""
        body = self._env.get_template(template).render(view=view, **facts).encode(errors="replace")
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers = {"etag": tag, "vary": "Cookie, Authorization"}
        if status == 200 and view.request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, status, headers, media_type="text/html")


class Assets:
    """The files that pages load, each under a name with its digest, so that browsers keep them for ever."""

    def __init__(self) -> None:
        folder = resources.files("leasequeue.dashboard") / "assets"
        self._files: dict[str, tuple[bytes, str]] = {}
        #: The names by which pages ask for them.
        self.names: dict[str, str] = {}
        for file in folder.iterdir():
            stem, _, ending = file.name.rpartition(".")
            kind = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}.get(ending)
            if kind is not None:
                body = file.read_bytes()
                self.names[file.name] = f"{stem}.{hashlib.sha256(body).hexdigest()[:12]}.{ending}"
                self._files[self.names[file.name]] = body, kind

    def answer(self, name: str) -> Response | None:
        """Return a file; None: there is none of this name."""
        if name not in self._files:
            return None
        body, kind = self._files[name]
        return Response(
            body, media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"}
        )


def number(value: float | None) -> str:
    """Return a whole number in full, with separators."""
    return NOTHING if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Return a number for each second, with as many digits as are of use."""
    if value is None:
        return NOTHING
    return (
        f"{value:,.0f}"
        if value >= 100
        else f"{value:.1f}"
        if value >= 0.05
        else f"{value:.2f}"
        if value
        else "0"
    )


def duration(seconds: float | None) -> str:
    """Return a time in its largest unit."""
    if seconds is None:
        return NOTHING
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}"
    return "0 s"


def ago(at: float | None) -> str | Markup:
    """Return a time as the distance from now, with the exact one on hover."""
    if at is None:
        return NOTHING
    try:
        exact = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
    past = time.time() - at
    text = f"{duration(past)} ago" if past >= 0 else f"in {duration(-past)}"
    return Markup(f'<time datetime="{exact}" title="{exact}">{text}</time>')  # noqa: S704 - digits and units


def sparkline(points: Sequence[tuple[float, float]], label: str) -> Markup:
    """Return how a number went, as a line."""
    if len(points) < 2:
        return Markup('<span class="none">{}</span>').format(NOTHING)
    first, last = points[0][0], points[-1][0]
    highest = max(1.0, *(value for _, value in points))
    x, y, lowest = _WIDTH / (last - first), (_HEIGHT - 2 * _BORDER) / highest, _HEIGHT - _BORDER
    drawn = " ".join([f"{int((at - first) * x)},{lowest - int(value * y)}" for at, value in points])
    text = f"{label} in the last {duration(last - first)}: now {points[-1][1]:,.0f}, at most {highest:,.0f}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<title>{}</title><polygon points="0,{} {} {},{}"/><polyline points="{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, text, text, _HEIGHT, drawn, _WIDTH, _HEIGHT, drawn)
