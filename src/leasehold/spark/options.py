"""The options of the format: read once on the driver, checked before anything is planned."""

from __future__ import annotations

import difflib
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasehold.durations import seconds
from leasehold.errors import InvalidArgument
from leasehold.keys import check_prefix
from leasehold.scripting.urls import holds_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Where the server is, if no option says so; as for the command line.
URL_VARIABLES = ("LEASEHOLD_URL", "REDIS_URL")
#: What every use of the format understands.
COMMON = ("queue", "url", "urlEnv", "urlFile", "cluster")
#: Those of them that say where the server is, in small letters.
WHERE = ("url", "urlenv", "urlfile", "cluster")
#: What Spark itself puts among the options.
SPARKS_OWN = ("path", "checkpointLocation", "queryName")


@dataclass(frozen=True)
class Target:
    """Which queue, and where. It travels to the executors; its repr shows no password."""

    queue: str
    url: str
    cluster: bool = False

    def __repr__(self) -> str:
        return f"Target({self.queue!r}, …)"


class Options:
    """The options of one use of the format. Their names may be written in any case, as everywhere in Spark.

    Args:
        given: What Spark passes.
        allowed: The names that this use understands, beside those of all.

    Raises:
        InvalidArgument: If there is one that nobody understands; the message proposes another.
    """

    def __init__(self, given: Mapping[str, str], allowed: Iterable[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        known = {name.lower(): name for name in (*COMMON, *SPARKS_OWN, *allowed)}
        for name in self._given:
            if name not in known and not name.startswith("spark."):
                close = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {known[close[0]]!r}?)" if close else ""
                names = ", ".join(sorted({*known.values()} - {*SPARKS_OWN}))
                raise InvalidArgument("option", name, f"one of {names}{hint}")

    def target(self) -> Target:
        """Which queue is meant, and where it is.

        Raises:
            InvalidArgument: If the queue is not named, or the URL holds a password that Spark would log.
        """
        queue = check_prefix(self.text("queue") or None)
        ways = [name for name in ("url", "urlEnv", "urlFile") if self.text(name)]
        if len(ways) > 1:
            raise InvalidArgument("option", " and ".join(ways), "one of them")
        return Target(queue, self._url(), cluster=self.flag("cluster", default=False))

    def _url(self) -> str:
        if file := self.text("urlFile"):
            try:
                return Path(file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise InvalidArgument("urlFile", file, "a file on the driver that holds the URL") from error
        if variable := self.text("urlEnv"):
            if not os.environ.get(variable):
                allowed = "the name of an environment variable that the driver had before Spark was started"
                raise InvalidArgument("urlEnv", variable, allowed)
            return os.environ[variable]
        if url := self.text("url"):
            if has_password(url):
                # The text itself is not shown.
                raise InvalidArgument("url", "one with a password", "urlEnv or urlFile: Spark logs options")
            return url
        for variable in URL_VARIABLES:
            if os.environ.get(variable):
                return os.environ[variable]
        raise InvalidArgument("url", None, f"option url, urlEnv or urlFile, or {' or '.join(URL_VARIABLES)}")

    def text(self, name: str, default: str = "") -> str:
        """An option as it was given."""
        return self._given.get(name.lower(), default)

    def flag(self, name: str, *, default: bool) -> bool:
        """An option that is true or false."""
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidArgument(name, value, "true or false")
        return value == "true"

    def check_int(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        """An option that is a whole number."""
        value = self.text(name, str(default))
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        if not minimum <= number <= maximum:
            raise InvalidArgument(name, value, f"a whole number from {minimum:,} to {maximum:,}")
        return number

    def seconds(self, name: str, default: float) -> float:
        """An option that is a length of time, in seconds."""
        value: Any = self.text(name, str(default))
        try:
            value = float(value)
        except ValueError:
            raise InvalidArgument(name, value, "a number of seconds") from None
        return seconds(name, value, zero=False)

    def names(self, name: str) -> list[str]:
        """An option that is a list of names, with commas between."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]


def has_password(url: str) -> bool:
    """Whether a URL holds a password, so that it must not be where Spark logs it."""
    return holds_login(url)


@contextmanager
def handed_on(url: str, *, cluster: bool) -> Iterator[dict[str, str]]:
    """Give the options that say where the server is.

    One with a password goes by way of a file that only this user can read, as Spark logs options.
    """
    kind = {"cluster": "true"} if cluster else {}
    if not has_password(url):
        yield {"url": url, **kind}
        return
    handle, name = tempfile.mkstemp(prefix="leasehold-", text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(url)
        yield {"urlFile": name, **kind}
    finally:
        Path(name).unlink(missing_ok=True)
