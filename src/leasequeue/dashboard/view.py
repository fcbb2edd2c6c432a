"""What a page is, and what it sees of a request: the viewer's rights, the queues, and how links are made."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlencode

from leasequeue.codecs import codec_in
from leasequeue.dashboard.sampler import OF_ONE_QUEUE
from leasequeue.errors import LeasequeueError
from leasequeue.errors.describing import TEXT_LENGTH, indented

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence

    from starlette.requests import Request

    from leasequeue.dashboard.rights import GivesRights, Rights
    from leasequeue.dashboard.sampler import QueueHistory, Sampler
    from leasequeue.dashboard.sharing import SharedReads
    from leasequeue.dashboard.sources import ShownQueues
    from leasequeue.queue import AsyncWorkQueue

T = TypeVar("T")

#: The longest id or name that has a link, in characters. Other programs may write a longer one, which is no
#: address that a server takes; and 50 of a mebibyte would be no page.
MAX_LINKED = 512
#: How many queues are read at once.
AT_ONCE = 16

#: Whether payloads are shown; or what returns a text of those of a queue, None to hide one.
ShowData: TypeAlias = "bool | Callable[[str, bytes], str | None]"


class Elsewhere(LeasequeueError):
    """What is asked for has another page, at the link that is the text of this error."""


class NotFound(LeasequeueError):
    """What a path names is not there."""


@dataclass(kw_only=True, frozen=True)
class Page:
    """A page of the dashboard."""

    #: Its path, with parts such as `{queue}`; see `View.text`.
    path: str
    template: str
    #: Returns what the template shows.
    read: Callable[[View], Awaitable[dict[str, Any]]]
    #: Its name in the navigation; None: it is not there.
    menu: str | None = None


@dataclass(kw_only=True, frozen=True)
class Board:
    """What all requests of a dashboard share."""

    queues: ShownQueues
    sampler: Sampler
    reads: SharedReads
    rights: GivesRights
    show_data: ShowData
    environment: str


@dataclass(kw_only=True)
class View:
    """What a page sees of a request."""

    request: Request
    board: Board
    rights: Rights
    #: The fields of the form of an action; each may be there several times.
    form: dict[str, list[str]] = field(default_factory=dict)
    #: The queues that the page should show and could not read, and why; the page says it.
    problems: dict[str, LeasequeueError] = field(default_factory=dict)

    @property
    def sampler(self) -> Sampler:
        """What was seen of the queues."""
        return self.board.sampler

    def text(self, part: str) -> str:
        """Return what a part of the path stands for: see `segment`."""
        return read_segment(self.request.path_params[part])

    def queue(self, name: str) -> AsyncWorkQueue:
        """Return a queue that the dashboard shows.

        Raises:
            NotFound: If it shows none of this name.
        """
        queue = self.board.queues.by_name().get(name)
        if queue is None:
            raise NotFound(f"this dashboard shows no queue {name!r}: it has no items, or another name")
        return queue

    async def history(self, name: str) -> QueueHistory:
        """Return what was seen of a queue, and have it asked again and again while the page is open."""
        await self.sampler.look([name])
        self.sampler.check()
        self.queue(name)
        if name not in self.sampler.histories:  # one of many, which had no turn yet
            await self.sampler.sample(name)
        history = self.sampler.histories[name]
        if history.stats is None and history.problem is not None:
            raise history.problem
        return history

    @property
    def partly(self) -> list[QueueHistory]:
        """What was seen of the queues of which some shards cannot be read; each page says it."""
        return [one for one in self.sampler.histories.values() if one.away and not one.problem]

    async def shared(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return what `call` answers, or what it answered to another viewer a moment ago."""
        return await self.board.reads.get(key, call)

    async def seen(self) -> dict[str, QueueHistory]:
        """Return what was seen of the queues that can be read; the page names the others."""
        await self.sampler.look()
        self.sampler.check()
        seen = self.sampler.histories
        self.problems |= {name: one.problem for name, one in seen.items() if one.problem}
        return {name: one for name, one in seen.items() if not one.problem}

    async def each(
        self, queues: Sequence[AsyncWorkQueue], read: Callable[[AsyncWorkQueue], Awaitable[T]], *key: Hashable
    ) -> list[tuple[AsyncWorkQueue, T]]:
        """Return what `read` answers for each queue, shared as by `shared`; the page names those that fail.

        Raises:
            LeasequeueError: If all fail, and it is not for what one queue has.
        """
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(queue: AsyncWorkQueue) -> T | LeasequeueError:
            async with limit:
                try:
                    return await read(queue)
                except LeasequeueError as error:
                    return error

        async def every() -> list[T | LeasequeueError]:
            return await asyncio.gather(*map(one, queues))

        answers = await self.shared((*key, *(queue.name for queue in queues)), every)
        rows = [*zip(queues, answers, strict=True)]
        read_of = [(queue, one) for queue, one in rows if not isinstance(one, LeasequeueError)]
        problems = [(queue.whole.name, one) for queue, one in rows if isinstance(one, LeasequeueError)]
        for _, problem in problems:
            if not (read_of or isinstance(problem, OF_ONE_QUEUE)):
                raise problem
        self.problems |= problems
        return read_of

    def may(self, action: str) -> bool:
        """Return whether the viewer may do an action."""
        return action in self.rights.actions

    def field(self, name: str, default: str = "") -> str:
        """Return the value of a field of the form."""
        return self.form.get(name, [default])[0]

    def readable(self, queue: str, data: bytes) -> str | None:
        """Return what the viewer may read of a payload, an argument or a result, in full; None: nothing."""
        show = self.board.show_data
        if show and (codec := codec_in(data)):
            return f"(encoded by {codec})"
        if callable(show):
            return show(queue, data)
        return data.decode(errors="backslashreplace") if show else None

    def shown(self, queue: str, data: bytes) -> str | None:
        """Return the text of a payload, an argument or a result; None: it is hidden. A long one is cut."""
        text = self.readable(queue, data)
        return None if text is None else indented(text, TEXT_LENGTH, indent="")

    def link(self, *path: str, **query: Any) -> str:
        """Return a link to a path of the dashboard, relative to this page; a query without value is left out.

        So it is right behind any prefix that a proxy adds or removes, which need not be known here. The path
        of the overview must end with a slash there, to which Starlette and most proxies redirect. A proxy
        that serves it without says its prefix in X-Forwarded-Prefix.
        """
        chosen = {name: value for name, value in query.items() if value not in (None, "")}
        tail = "".join(path).removeprefix("/") + (
            "?" + urlencode(chosen, errors="surrogateescape") if chosen else ""
        )
        prefix = self.request.headers.get("x-forwarded-prefix", "").rstrip("/")
        root = self.request.scope.get("root_path", "")
        if (
            prefix.startswith("/")
            and not prefix.startswith("//")
            and prefix.isprintable()
            and "\\" not in prefix
        ):
            return f"{quote(prefix + root)}/{tail}"
        # For the browser, `%2F` ends no part of the path, and this page is no deeper.
        asked = self.request.scope.get("raw_path") or self.request.scope["path"].encode()
        depth = asked.count(b"/") - root.count("/") - 1
        return ("../" * depth or "./") + tail

    @property
    def path(self) -> str:
        """The path of this page within the dashboard, as a link has it."""
        return quote(self.request.scope["path"].removeprefix(self.request.scope.get("root_path", "")))

    def here(self, **query: Any) -> str:
        """Return a link to this page with some parts of its query changed; None removes one."""
        return self.link(self.path, **{**self.request.query_params, **query})


def segment(text: str) -> str:
    """Return any text as one part of a path.

    Proxies decode, merge and refuse `%2F`, `%5C` and dots, so that `~` takes the place of the percent sign.
    """
    quoted = quote(text, safe="", errors="surrogateescape")
    return quoted.replace("~", "%7E").replace(".", "%2E").replace("%", "~")


def read_segment(part: str) -> str:
    """Return the text of a part of a path."""
    quoted = quote(part, safe="~", errors="surrogateescape")
    return unquote(quoted.replace("~", "%"), errors="surrogateescape")


def key_of(*names: str) -> str:
    """Return what a row is called in the page and in cursors: its names, or their digest if they are long."""
    if max(map(len, names)) <= MAX_LINKED:
        return "/".join(map(segment, names))
    return hashlib.blake2b(repr(names).encode(), digest_size=16).hexdigest()


def checked_query(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Return a value of a query if it is one of some; else the first of them."""
    value = given.get(name, allowed[0])
    return value if value in allowed else allowed[0]


@dataclass(kw_only=True, frozen=True)
class Part(Generic[T]):
    """Some rows of a list, and the cursor after which the next ones are; None: these are the last."""

    rows: Sequence[T]
    following: str | None
    is_first: bool


def rows_after(rows: Sequence[T], key: Callable[[T], str], after: str, count: int) -> Part[T]:
    """Return the rows after the one with a key, or the first ones if it is gone."""
    start = next((at + 1 for at, one in enumerate(rows) if after and key(one) == after), 0)
    shown = rows[start : start + count]
    more = start + count < len(rows)
    return Part(rows=shown, following=key(shown[-1]) if more else None, is_first=start == 0)
