"""What the access rules of the server permit a session: found out when it starts, before the first call."""

from __future__ import annotations

import asyncio
import shlex
import time
from typing import TYPE_CHECKING

from leasequeue.errors import AccessDenied
from leasequeue.errors.log import Log
from leasequeue.wire.access import NOTING, READING, Role, least_role, pattern_of, quoted
from leasequeue.wire.scripts import find_script, load
from leasequeue.wire.server_errors import lacks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from leasequeue.wire.scripts import Script

log = Log("leasequeue")

#: For so long after the server was asked, a call that needs what was refused fails at once (s).
RECHECK_SECONDS = 5.0
#: Commands that publish. Scripts do their work if they are refused.
PUBLISHING = frozenset({"PUBLISH", "SPUBLISH"})
#: Who may not do this can neither add nor release items.
ADDING = "LPUSH"
#: Commands that the scripts do without if they are refused.
OPTIONAL = PUBLISHING | {"MSETEX"}


class KnownRights:
    """Which commands and channels the server permits. Until it has answered the probe: all but MSETEX.

    Attributes:
        set_many: Whether the server has MSETEX and permits it.
        refused: The commands that it refuses and that scripts cannot do without.
        absent: Those commands that it does not have, or whose names its provider has taken away.
        queue: The queue on which this is found out.
        whole: The queue that it is a shard of; None: it is none.
        reached: The names of the other queues of flows that it was found to permit.
    """

    def __init__(self, user: str = "default") -> None:
        self._user = user
        self.queue = "QUEUE"
        self.whole: str | None = None
        #: Whether a server was asked, and what is held to ask.
        self.checked = False
        self.checking = asyncio.Lock()
        self.warned = False
        self.reached: set[str] = set()
        self._listed = False
        self._learned_at = 0.0
        self.set_many = False
        self.refused: frozenset[str] = frozenset()
        self.absent: frozenset[str] = frozenset()

    @property
    def stale(self) -> bool:
        """Whether to ask again before a call is refused: the rules may have been changed since."""
        return bool(self.refused) and time.monotonic() - self._learned_at > RECHECK_SECONDS

    def learn(self, set_many: int, *refused: bytes) -> None:
        """Read the reply of the `probe` script."""
        self.set_many = set_many == 1
        names = frozenset(name.decode().lstrip("?") for name in refused)
        self.absent = frozenset(name.decode()[1:] for name in refused if name.startswith(b"?"))
        self.refused = names - OPTIONAL
        self._learned_at = time.monotonic()
        if "PUBLISH" in names and ADDING not in names:  # else it only reads, and has nothing to publish
            self.warn_of_channel(f"{self.queue}:push:*".encode())

    def refusal(self, script: Script) -> AccessDenied | None:
        """Return the error for a script that the server would end between two commands; None: it may run."""
        wrong = script.commands & self.refused
        if script.name in NOTING:
            wrong &= READING
        return self.denied(wrong, f"which {script.name} needs", least_role(script)) if wrong else None

    def unknown(self, script: Script) -> AccessDenied:
        """Return the error for a script that the server does not know, and this user may not send."""
        return AccessDenied(
            f"the server does not know the script {script.name}, as it was restarted, and the access rules "
            "forbid EVAL, with which it is sent; nothing was applied. Each worker or producer that connects, "
            f"and `leasequeue acl`, loads what a watcher runs{self._all(Role.WATCHER)}",
            commands=["EVAL"],
        )

    @property
    def may_write(self) -> bool:
        """Whether the server is known to permit the user to write."""
        return self._learned_at > 0 and ADDING not in self.refused

    def denied(self, commands: Iterable[str], why: str, role: Role) -> AccessDenied:
        """Return the error for commands that are refused, with the rule that permits them.

        `role` is the one that permits least, of those that permit this.
        """
        wrong = sorted(commands)
        if absent := sorted(self.absent.intersection(wrong)):
            return AccessDenied(f"{lacks(absent)}, {why}; nothing was applied", commands=wrong)
        return AccessDenied(
            f"the access rules forbid {', '.join(wrong)}, {why}; nothing was applied. "
            f"{self._permit(wrong)} permits {'it' if len(wrong) == 1 else 'them'}{self._all(role)}",
            commands=wrong,
        )

    def denied_queue(self, name: str, why: str) -> AccessDenied:
        """Return the error for a queue on which items are to be added, with the rule that permits it."""
        pattern = pattern_of(name)
        return AccessDenied(
            f"the access rules forbid to write to the queue {name!r}, {why}; nothing was applied. "
            f"{self._permit((), f'~{pattern}', f'&{pattern}')} permits it{self._all(Role.PRODUCER, name)}",
            keys=[pattern],
        )

    def expect(self, scripts: Collection[str], also: Iterable[str] = ()) -> None:
        """Check that scripts may run. Log, once, which others may not.

        `also` names other commands that are needed and refused.
        """
        wrong = {*also}
        if self.refused:
            wrong |= self.refused & {name for one in scripts for name in find_script(one).commands}
        if wrong:
            raise self.denied(wrong, "which a worker needs", Role.WORKER)
        if self.refused and not self._listed:
            self._listed = True
            others = sorted({one.name for one in load().values() if one.commands & self.refused} - {"probe"})
            if absent := sorted(self.absent & self.refused):
                log.warning("%s: %s will be refused", lacks(absent), ", ".join(others))
                return
            log.warning(
                "the access rules forbid %s: %s will be refused. %s permits that%s",
                *(", ".join(sorted(self.refused)), ", ".join(others)),
                *(self._permit(sorted(self.refused)), self._all(Role.WORKER)),
            )

    def warn_of_channel(self, channel: bytes) -> None:
        """Log, once in a session, that a channel of a queue is forbidden."""
        if self.warned:
            return
        self.warned = True
        if absent := sorted(self.absent & {"PUBLISH", "SUBSCRIBE"}):
            log.warning(
                "%s: results, cancels and items that fall due are noticed seconds late", lacks(absent)
            )
            return
        name = channel.decode(errors="replace")
        of_session, is_push, _ = name.rpartition(":push:")
        pattern = pattern_of(of_session if is_push else name.removesuffix(":due"))
        log.warning(
            "the access rules forbid the channel %r: results, cancels and items that fall due are noticed "
            "seconds late. %s permits it%s",
            *(name, self._permit(["PUBLISH", "SUBSCRIBE"], f"&{pattern}"), self._all(Role.PRODUCER)),
        )

    def _permit(self, commands: Iterable[str], *channels: str) -> str:
        words = ["ACL", "SETUSER", self._user, *(f"+{name.lower()}" for name in commands), *channels]
        return f"`{' '.join(map(quoted, words))}`"

    def _all(self, role: Role, *others: str) -> str:
        """Say how to find all rules of a user; of each role that permits this, as it may have that one.

        `role` is the one that permits least; `others` are the other queues that it needs.
        """
        named = [self.queue, *others] if self.whole is None else [self.whole, *others, "--shards"]
        command = ["leasequeue", "acl", *named, "--user", self._user, "--role"]
        roles = [*Role]
        said = [f"`{shlex.join([*command, role])}` prints all that a {role} needs"]
        said += [f"`--role {more}` what a {more} needs" for more in reversed(roles[: roles.index(role)])]
        return f"; {', '.join(said)}"
