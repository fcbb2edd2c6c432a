"""A page as a browser reads it: its elements, links, forms and texts, and what is wrong with the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from leasequeue.dashboard.guard import HEADERS
from tests.hostile import harm_of

if TYPE_CHECKING:
    import httpx

#: The element and the attribute that a hostile text tries to add, and what is in each payload.
INJECTED, SECRET = "injected", "secret-marker"
#: The largest answer (bytes).
LARGEST = 1_000_000
#: What may be answered: no 500, and no 503, as the server is there.
STATUSES = {200, 303, 304, 400, 403, 404, 405, 409}
_VOID = {"br", "img", "input", "link", "meta"}


@dataclass
class ShownForm:
    """A form: where it is sent, how, and with what if nothing is typed or selected."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    #: Whether something must be typed first.
    asks: bool = False


class ShownPage(HTMLParser):
    """The parsed page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        #: Where the links lead that lead elsewhere.
        self.links: list[str] = []
        self.forms: list[ShownForm] = []
        #: Values of the boxes that can be ticked.
        self.boxes: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self._scripts = 0
        self.feed(html)
        self.close()
        if self._open or self._scripts != 2:
            self.problems.append(f"{self._scripts} scripts, and no end of {self._open}")
        self.problems += [one for one in harm_of(self.text, longest=None) if "forged" not in one]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element, and what must not be in it."""
        given = {name: value or "" for name, value in attrs}
        bad = [one for one in given if one.startswith("on") or one in {INJECTED, "style", "srcdoc"}]
        if bad or tag in {INJECTED, "style", "iframe"} or len(given) < len(attrs):
            self.problems.append(f"{tag} with {bad or attrs}")
        self._scripts += tag == "script"
        self.text += f" {given.get('title', '')} "
        if tag == "a":
            self.links += [given["href"]] if given["href"][0] != "#" else []
        elif tag == "form":
            self.forms.append(ShownForm(given.get("action", ""), given.get("method", "get")))
        elif "formaction" in given:
            self.forms.append(ShownForm(given["formaction"], "post", self.forms[-1].fields))
        elif tag == "input" and given.get("type") == "checkbox":
            self.boxes.append(given.get("value", ""))
        elif tag == "input" and "name" in given:
            self.forms[-1].fields.append((given["name"], given.get("value", "")))
            self.forms[-1].asks |= "required" in given
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that ends at once, as those of SVG do."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """Note the end of the innermost element."""
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> ends no element")

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.text += data


def problems_of(answer: httpx.Response) -> list[str]:
    """Return what is wrong with an answer, whatever was asked for."""
    kind, size = answer.headers.get("content-type", "").partition(";")[0], len(answer.content)
    return [
        *(ShownPage(answer.text).problems if kind == "text/html" else ()),
        *(f"no header {one}" for one in HEADERS if one not in answer.headers),
        *([f"status {answer.status_code}"] if answer.status_code not in STATUSES else ()),
        *([f"{size:,} bytes"] if size > LARGEST else ()),
        *(["hidden data"] if SECRET in answer.text else ()),
        *([f"it is {kind}"] if size and kind not in {"text/html", "text/plain"} else ()),
    ]
