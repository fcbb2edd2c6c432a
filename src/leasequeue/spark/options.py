"""The options of the format: parsed once on the driver and checked before anything is planned."""

from __future__ import annotations

import difflib
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.utils import is_remote

from leasequeue.durations import seconds
from leasequeue.errors import InvalidArgument
from leasequeue.keys import check_prefix
from leasequeue.queue.shards.opening import Layout
from leasequeue.queue.shards.spreading import MAX_SHARDS
from leasequeue.spark.secret_file import secret_file
from leasequeue.wire.urls import holds_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: The environment variables for the server's URL when no option names it; the same as for the command line.
URL_VARIABLES = ("LEASEQUEUE_URL", "REDIS_URL")
#: The URL of a job when nothing names another; the same as for the command line.
DEFAULT_URL = "redis://localhost:6379"
#: The options of every use of the format.
COMMON = ("queue", "url", "urlEnv", "urlFile", "cluster", "codec")
#: Those of them that locate the server, in lower case.
LOCATION = ("url", "urlenv", "urlfile", "cluster")
#: Options that Spark itself adds.
SPARKS_OWN = ("path", "checkpointLocation", "queryName")
#: How long a request is repeated while the server is unavailable, without the option `retryTimeout` (s).
RETRY_TIMEOUT = 60.0
#: What other sources call the maximum of a batch, in lower case. The name here ends like theirs.
_LIMITS = (
    *("maxrow", "maxrows", "maxoffsetspertrigger", "maxfilespertrigger", "maxbytespertrigger"),
    *("maxrecordspertrigger", "maxitemspertrigger", "maxeventspertrigger"),
)


@dataclass(frozen=True)
class QueueTarget:
    """A queue and its server. It is sent to the executors; its repr shows no password."""

    queue: str
    url: str
    cluster: bool = False
    #: None: it has no shards, or the driver has not looked for them yet.
    layout: Layout | None = None
    #: Where its codec is imported from, `module:name`.
    codec: str | None = None

    def shard(self, name: str) -> QueueTarget:
        """Return a shard of the queue by its name; without one, the queue itself."""
        return replace(self, queue=name, layout=None) if name else self

    def __repr__(self) -> str:
        return f"QueueTarget({self.queue!r}, …)"


class FormatOptions:
    """The options of one use of the format. As everywhere in Spark, their case does not matter."""

    def __init__(self, given: Mapping[str, str], allowed: Iterable[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        known = {name.lower(): name for name in (*COMMON, *SPARKS_OWN, *allowed)}
        for name in self._given:
            if name not in known and not name.startswith("spark."):
                close = _similar(name, known)
                hint = f" (did you mean {known[close]!r}?)" if close else ""
                names = ", ".join(sorted({*known.values()} - {*SPARKS_OWN}))
                raise InvalidArgument("option", name, f"one of {names}{hint}")

    def target(self) -> QueueTarget:
        """Return the queue and its server."""
        queue = self.text("queue")
        if not queue:
            in_sql = (
                ""
                if self._given
                else "; Spark drops those of CREATE TABLE: add WITH (queue = …) to the query"
            )
            raise InvalidArgument("queue", queue or None, f"the queue's name, as the option queue{in_sql}")
        try:
            check_prefix(queue)
        except InvalidArgument as error:
            raise InvalidArgument("queue", queue, error.allowed) from error
        ways = [name for name in ("url", "urlEnv", "urlFile") if self.text(name)]
        if len(ways) > 1:
            raise InvalidArgument("option", " and ".join(ways), "one of them")
        codec = self.text("codec") or None
        return QueueTarget(queue, self._url(), self.flag("cluster", default=False), self._layout(), codec)

    def _layout(self) -> Layout | None:
        by: Any = self.text("shardBy", "id")
        if self.given("shards"):
            return Layout(self.check_int("shards", 0, minimum=1, maximum=MAX_SHARDS), by)
        if self.given("shardBy"):
            raise InvalidArgument("shardBy", by, "the option shards beside it")
        return None

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
            if holds_login(url):
                # The message leaves out the URL itself.
                raise InvalidArgument("url", "one with a password", "urlEnv or urlFile: Spark logs options")
            return url
        if found := _url_of_environment():
            return found
        raise InvalidArgument("url", None, f"option url, urlEnv or urlFile, or {' or '.join(URL_VARIABLES)}")

    def given(self, name: str) -> bool:
        """Return whether an option was given, be it empty."""
        return name.lower() in self._given

    def text(self, name: str, default: str = "") -> str:
        """Return an option as it was given."""
        return self._given.get(name.lower(), default)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidArgument(name, value, "true or false")
        return value == "true"

    def check_int(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        """Return an option that is a whole number."""
        value = self.text(name, str(default))
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        if not minimum <= number <= maximum:
            raise InvalidArgument(name, value, f"a whole number from {minimum:,} to {maximum:,}")
        return number

    def seconds(self, name: str, default: float) -> float:
        """Return an option that is a duration in seconds."""
        value: Any = self.text(name, str(default))
        try:
            value = float(value)
        except ValueError:
            raise InvalidArgument(name, value, "a number of seconds") from None
        return seconds(name, value, zero=False)

    def retry_timeout(self) -> float:
        """Return how long a request is repeated while the server is unavailable, in seconds."""
        return self.seconds("retryTimeout", RETRY_TIMEOUT)

    def names(self, name: str) -> list[str]:
        """Return an option that is a comma-separated list of names."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]


def _similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that an unknown one, in lower case, probably stands for."""
    if name in _LIMITS:
        return next((one for one in known if one.startswith("max") and one.endswith("pertrigger")), None)
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _url_of_environment() -> str | None:
    return next(filter(None, map(os.environ.get, URL_VARIABLES)), None)


@contextmanager
def server_options(
    url: str | None, *, cluster: bool = False, codec: str | None = None
) -> Iterator[dict[str, str]]:
    """Return the options that locate the server and the codec, for the length of a block.

    A URL with a password is passed in a file that only this user can read, as Spark logs options. The file is
    removed at the end of the block, and if this process ends before, in whatever way. With Spark Connect,
    whose server cannot read this machine's files, it has to come from the environment of both.
    """
    of_environment = _url_of_environment()
    url = url or of_environment or DEFAULT_URL
    kind = ({"cluster": "true"} if cluster else {}) | ({"codec": codec} if codec else {})
    if not holds_login(url):
        yield {"url": url, **kind}
        return
    if is_remote():
        if url != of_environment:
            allowed = f"with Spark Connect: {URL_VARIABLES[0]}, set here and on the Connect server"
            raise InvalidArgument("url", "one with a password", allowed)
        yield kind
        return
    with secret_file(url) as file:
        yield {"urlFile": str(file), **kind}
