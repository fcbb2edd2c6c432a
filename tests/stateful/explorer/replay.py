"""Writes the path to a state as a Python program, with the commands that were sent and nothing renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.stateful.explorer.actions import after, command, describe, understood
from tests.stateful.explorer.checks import Recovery
from tests.stateful.explorer.server import NOW_MS, PREFIX, ms
from tests.stateful.explorer.state import FREE, State, advance, kept, last_end, next_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stateful.explorer.search import Bound, Result
    from tests.stateful.explorer.server import Board, Command
    from tests.stateful.explorer.state import Action

_HEAD = '''"""{what}

Run it with the URL of a server, which is emptied.
"""

import sys

from redis import Redis

from tests.stateful.explorer.server import Fault, composed

server = Redis.from_url(sys.argv[1])
server.flushdb()
scripts = composed({faults!r})


def run(name, keys, arguments):
    return server.eval(scripts[name].body, len(keys), *keys, *arguments)

'''
_TAIL = """
read = {
    b"list": lambda key: server.lrange(key, 0, -1),
    b"set": server.smembers,
    b"zset": lambda key: server.zrange(key, 0, -1, withscores=True),
    b"hash": server.hgetall,
    b"string": server.get,
}
for key in sorted(server.scan_iter()):
    print(key.decode(), read[server.type(key)](key))
"""


def program(url: str, bound: Bound, result: Result) -> str:
    """Return a program that repeats the path of a violation.

    Args:
        url: A server, which is emptied; the path is taken on it.
        bound: What was explored.
        result: What was found.
    """
    board = bound.board(url)
    state, now_ms = bound.start(), NOW_MS
    lines: list[str] = []
    sent: Command | None
    for action in result.path:
        lines.append(f"\n# {describe(board, action, state)}")
        if action.name == "clock":
            by = next_end(state)
            lines.append(f"# It is {ms(by) / 1000:g} s later.")
            then, now_ms = advance(state, by), now_ms + ms(by)
            for sent in _expired(board, state, then):
                lines += _line(board, sent)
            state = then
            continue
        if action.name == "deep_clean" and state.memory.deep_clean.step == 0:
            now_ms += 1  # what was leased before has an earlier time
            board.started_ms = now_ms
        sent = command(board, action, state, now_ms)
        answer = None
        if sent:
            answer = board.wire.call(*sent)
            lines += [*_line(board, sent), f"# {answer!r}"]
        state = _with_kept_tokens(board, action, state, answer, now_ms)
    if result.in_recovery:
        by = last_end(state)
        lines.append(f"\n# All clients have died. It is {ms(by) / 1000:g} s later.")
        recovery = Recovery(board, state, now_ms + ms(by))
        for sent in (*_expired(board, state, recovery.start), *recovery.commands):
            lines += _line(board, sent)
    board.close()
    head = _HEAD.format(what=result.what, faults=bound.faults)
    return head + "\n".join(lines) + "\n" + _TAIL


def _with_kept_tokens(board: Board, action: Action, state: State, answer: Any, now_ms: int) -> State:
    """Return the state after an action, with the tokens that the search keeps, in the same places."""
    keys = board.layout.keys(board.wire.call(*board.dumping), now_ms)
    keys, memory = after(action, state, understood(board, action, answer), keys)
    return State(keys, memory._replace(tokens=tuple(kept(tokens) for tokens in memory.tokens)))


def _expired(board: Board, before: State, then: State) -> Iterator[Command]:
    """Yield the commands after which the lease keys are as old as they should be."""
    for name, was, now in zip(board.layout.ids, before.keys.items, then.keys.items, strict=True):
        for key, held, kind, end in (
            ("lease", was.lease, now.lease, now.lease_end),
            ("leased_by_session", was.leased_by, now.leased_by, now.leased_by_end),
        ):
            if kind != FREE:
                yield ("PEXPIRE", f"{PREFIX}:{key}:{name}", ms(end))
            elif held != FREE:
                yield ("DEL", f"{PREFIX}:{key}:{name}")


def _line(board: Board, sent: Command) -> Iterator[str]:
    names = {script.sha: name for name, script in board.scripts.items()}
    if sent[0] == "EVALSHA":
        count = int(sent[2])
        keys, arguments = [*sent[3 : 3 + count]], [*sent[3 + count :]]
        name = names[sent[1]] if isinstance(sent[1], bytes) else sent[1]
        yield f"print({name!r}, run({name!r}, {keys}, {arguments}))"
    else:
        yield f"print({sent[0]!r}, server.execute_command({', '.join(map(repr, sent))}))"
