"""What the server permits the session of an event loop, of a queue and of others in its slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from leasequeue.keys import QueueKeys
    from leasequeue.wire.runner import Runner

#: The scripts without which no item can be leased.
LEASING = frozenset({"lease_many", "leave", "register"})


class QueueRights:
    """Checks the rights of a session before it begins what it could not end."""

    def __init__(
        self,
        runner: Runner,
        keys: QueueKeys,
        batched: Iterable[str],
        run_at: Callable[..., Awaitable[Any]],
    ) -> None:
        self._runner = runner
        self._keys = keys
        self._run_at = run_at
        self._needed = LEASING | {*batched}

    async def expect_worker(self, adds_to: Iterable[str] = ()) -> None:
        """Check that the server permits the session what a worker needs.

        What only other calls need is logged. The commands are those of the whole queue: a rule for single
        keys of it is found when they are used. `adds_to` names other queues in its slot to which the worker
        adds items of flow runs, or which hold their state. The text of AccessDenied has the rules that permit
        what is missing.
        """
        await self._runner.expect_rights(self._needed, self._keys)
        await self.expect_queues(adds_to, "which the stages of a flow need")

    async def expect_queues(self, names: Iterable[str], why: str) -> None:
        """Check that the server permits the session to write to other queues in the slot, each once.

        `why` says in the text of AccessDenied what needs them.
        """
        rights = self._runner.rights
        for name in dict.fromkeys(names):
            if name == self._keys.prefix.decode() or name in rights.reached:
                continue
            try:
                # Which settles nothing: no item has this id. The server checks the rules for all its keys.
                await self._run_at(name, "run_settle", [b"\0"], cursor=b"0")
            except AccessDenied as error:
                raise error if error.commands else rights.denied_queue(name, why) from error
            rights.reached.add(name)
