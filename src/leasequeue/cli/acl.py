"""`leasequeue acl`: print what the server must permit a user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.formatting import print_json, print_line
from leasequeue.cli.options import choice_option
from leasequeue.cli.server import DEFAULT_URL, AsJson, Code, QueueNames, Url, command, note, open_queue
from leasequeue.queue.queue import engine_of
from leasequeue.wire.access import Role, ServerFacts, questions, quoted, rules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue import AsyncWorkQueue


@command
async def acl(
    names: QueueNames,
    *,
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="The user's name; by default that of the first queue.")
    ] = None,
    role: Annotated[
        str,
        choice_option(
            "What the user is for: worker permits all that Leasequeue can do, producer to add items, wait "
            "for results and cancel, watcher to read.",
            [*Role],
            "--role",
        ),
    ] = Role.WORKER,
    shards: Annotated[
        bool, typer.Option("--shards", help="The queues have shards, though they were not used before.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Print the ACL SETUSER line with all that a user must be permitted.

    It fits the server at hand, which must permit INFO and COMMAND; print it
    again after an upgrade of the server or of Leasequeue. It changes nothing,
    and the line leaves passwords as they are.
    """
    user = names[0] if user is None else user
    if not user or any(letter.isspace() or letter == "\0" for letter in user):
        raise typer.BadParameter(
            f"{user!r} cannot be a user's name: without white space, please", param_hint="--user"
        )
    sharded = {name for name in names if shards and "{" not in name}
    async with open_queue(url, f"{{{names[0]}}}" if names[0] in sharded else names[0], create=True) as one:
        server, known = await _ask(one, user)
    shared: list[str] = []
    for name in names:
        if name in sharded:
            continue
        async with open_queue(url, name, create=True) as queue:
            if queue.shards != (queue,):
                sharded.add(name)
            elif (limit := (await queue.limits.get()).shared) is not None:
                shared.append(limit)
    rules = rules_of(dict.fromkeys([*names, *shared]), Role(role), server, sharded=sharded)
    print_rules(user, rules, as_json=as_json)
    if known is None:
        note(
            f"the server has no user {user!r} yet: this line creates it, without a password. "
            f"Set one with ACL SETUSER {user} >PASSWORD"
        )
    return Code.DONE


async def _ask(queue: AsyncWorkQueue, user: str) -> tuple[ServerFacts, object]:
    """Return what the server knows, and what it says of the user: None if it has no such user."""
    info, commands, known = await engine_of(queue.shards[0]).runner.ask(
        *questions(), (b"ACL", b"GETUSER", user.encode())
    )
    for reply in (info, commands):
        if isinstance(reply, BaseException):
            raise reply
    return ServerFacts.read(info, commands), known


def print_rules(user: str, rules: Sequence[str], *, as_json: bool) -> None:
    """Print the line as redis-cli and valkey-cli read it, or its words as JSON."""
    words = ["ACL", "SETUSER", user, "on", *rules]
    if as_json:
        print_json({"user": user, "rules": words[3:], "command": words})
    else:
        print_line(" ".join(map(quoted, words)))
