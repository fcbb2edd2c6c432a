"""What a worker reads of flow runs before it calls the handlers of stages: their states, and their inputs.

An item says in `meta.needs` of its data what its stage takes of the run, by parameter:

    `@name`         an attribute of the run          `stage`      the result of a stage
    `@name.field`   a member of it                   `stage.field`  a member of that
                                                     `stage/*`    the same as `stage`
    `<n`            the result of the part before, in a chain that is a child: that of `<0` has the path of
                    this stage, with one less as its last number; for each of n, the last is left out first

A list of these is the list of what they give. If its first element is `?stage`, there is no list unless that
stage has a result: one that joins a group has none if the group has failed. The result of a stage that has
fanned out is the list of those of its children that have succeeded, in their order. What the run does not
have is left out. Each call raises QueueClosed and ServerError as those of `AsyncWorkQueue` do.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from leasequeue.keys import FORMAT
from leasequeue.queue.plans.plan import CHAIN, as_bytes, definition_field, run_key
from leasequeue.wire.server_errors import too_new_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.lease import Lease, StageRef
    from leasequeue.queue.plans.plan import Need

#: How many fields of a run one command reads.
FIELDS_PER_READ = 1000
#: How many numbers `j:<path>` has at least if it counts children; those of a join of stages are fewer.
COUNTS_OF_CHILDREN = 5
#: How deep lists of needs may be in each other.
MAX_DEPTH = 20


class EntryState(NamedTuple):
    """What a worker has read of a stage before it calls the handler.

    Attributes:
        run: The state of the run; empty: there is no such run.
        stage: The state of the stage in it, one letter; empty: it was never entered.
        error: Why the stage has failed, if it has.
        inputs: The inputs by parameter, in JSON.
        signal: Of a stage that waits for a signal, what its item says of it.
    """

    run: str
    stage: str
    flow: str
    correlation: str | None
    error: str
    inputs: Mapping[str, bytes]
    signal: AwaitedSignal | None = None


class AwaitedSignal(msgspec.Struct):
    """What the item of a stage says that waits for a signal.

    Attributes:
        name: The name of the signal, that of the stage.
        otherwise: What the stage gives, in JSON, if the signal has not come; left out: it fails.
    """

    name: str
    otherwise: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Meta(msgspec.Struct, omit_defaults=True):
    """What the item of a stage says of its stage."""

    needs: dict[str, Any] = {}
    signal: AwaitedSignal | None = None


class _WithMeta(msgspec.Struct):
    meta: Meta


class _Place(msgspec.Struct):
    queue: str = ""


_WITH_META = msgspec.json.Decoder(_WithMeta)
_PLACE = msgspec.json.Decoder(_Place)
_BEFORE = re.compile(r"<\d")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def signal_data(signal: AwaitedSignal) -> bytes:
    """Return the data of the item of a stage that waits for a signal."""
    return msgspec.json.encode(_WithMeta(Meta(signal=signal)))


def meta_of(data: bytes) -> Meta:
    """Return what the stage of an item takes of its run, by parameter, and whether it waits for a signal."""
    try:
        return _WITH_META.decode(data).meta
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Meta()


async def read_stages(engine: Engine, leases: Sequence[Lease]) -> list[EntryState]:
    """Read the stages of leases, each of which is for one: those of one run with one command.

    Raise FormatTooNew if this version does not know the format of a home.
    """
    runs: dict[tuple[str, str], list[tuple[int, Lease, StageRef]]] = {}
    for at, lease in enumerate(leases):
        if (ref := lease.stage) is None:
            raise RuntimeError(f"{lease!r} is for no stage")
        runs.setdefault((ref.home, ref.run), []).append((at, lease, ref))
    reads = []
    for (home, run), some in runs.items():
        fields = _Fields(engine, home, run)
        fields.want(b"state", b"flow", b"correlation", b"mark")
        stages = [(at, ref, _placed(meta_of(lease.data), ref.path)) for at, lease, ref in some]
        for _, ref, meta in stages:
            fields.want(b"s:" + as_bytes(ref.path), b"e:" + as_bytes(ref.path))
            if home != engine.name:
                fields.want(definition_field(as_bytes(ref.path)))
            for need in meta.needs.values():
                fields.want(*_fields_of(need))
        reads.append((fields, stages))
    homes = [*dict.fromkeys(home for home, _ in runs if home != engine.name)]
    await _read_first(engine, [fields for fields, _ in reads], homes)
    # Most have all they need: a task for each would cost more than the rest.
    found = [await _states_of(*one) for one in reads if not one[0].without_result]
    found += await asyncio.gather(*(_states_of(*one) for one in reads if one[0].without_result))
    states = {at: state for part in found for at, state in part}
    return [states[at] for at in range(len(leases))]


def _placed(meta: Meta, path: str) -> Meta:
    """Return what the item says of its stage, with the path of the part before for `<n`."""
    if "/" in path:
        for name, need in meta.needs.items():
            if isinstance(need, str) and _BEFORE.fullmatch(need):
                meta.needs[name] = _part_before(path, int(need[1:]))
    return meta


def _part_before(path: str, levels: int) -> str:
    *above, number = path.split("/")[: -levels or None]
    return "/".join([*above, str(int(number) - 1)])


async def read_needs(engine: Engine, run_id: str, needs: Sequence[Need]) -> list[bytes | None]:
    """Read what needs give of a run whose home is a queue, in JSON; None for what the run does not have."""
    fields = _Fields(engine, engine.name, run_id)
    await fields.read_needs(needs)
    return [await _value_of(fields, need) for need in needs]


async def _read_first(engine: Engine, several: Sequence[_Fields], homes: Sequence[str]) -> None:
    steps = [(fields, step) for fields in several for step in fields.steps()]
    commands = [(b"HMGET", fields.key, *step) for fields, step in steps]
    looks = [(b"GET", as_bytes(f"{home}:too_new_for:{FORMAT}")) for home in homes]
    replies = await engine.read_many_at([*looks, *commands])
    for home, text in zip(homes, replies, strict=False):
        if text is not None and (error := too_new_in(f"FORMATTOONEW {text.decode()} {home}")):
            engine.feeds.leave(error)
            raise error
    for (fields, step), values in zip(steps, replies[len(homes) :], strict=True):
        fields.note(step, values)


async def _states_of(
    fields: _Fields, stages: Iterable[tuple[int, StageRef, Meta]]
) -> list[tuple[int, EntryState]]:
    await fields.read_parents()
    return [(at, await _state_of(fields, ref, meta)) for at, ref, meta in stages]


async def _state_of(fields: _Fields, ref: StageRef, meta: Meta) -> EntryState:
    path = as_bytes(ref.path)
    stage = fields.text(b"s:" + path)
    # That of an earlier run of this id, or an item that was not added by the run.
    if fields.text(b"mark") != ref.mark or (stage == "w" and not fields.is_here(ref.home, path)):
        return EntryState("", "", "", None, "", {})
    inputs = {}
    for parameter, need in meta.needs.items() if stage == "w" else ():
        if (value := await _value_of(fields, need)) is not None:
            inputs[parameter] = value
    return EntryState(
        fields.text(b"state"),
        stage,
        fields.text(b"flow"),
        fields.text(b"correlation") or None,
        fields.text(b"e:" + path),
        inputs,
        meta.signal,
    )


class _Fields:
    """The fields of one run that have been read, and those that are to be."""

    def __init__(self, engine: Engine, home: str, run: str) -> None:
        self._engine = engine
        self.key = run_key(home, run)
        self._found: dict[bytes, bytes | None] = {}
        self._wanted: dict[bytes, None] = {}

    def want(self, *names: bytes) -> None:
        """Read these fields next, unless they have been."""
        self._wanted.update(dict.fromkeys(name for name in names if name not in self._found))

    def steps(self) -> list[list[bytes]]:
        """Return what is wanted, in steps; it is wanted no more."""
        wanted, self._wanted = [*self._wanted], {}
        return [wanted[at : at + FIELDS_PER_READ] for at in range(0, len(wanted), FIELDS_PER_READ)]

    def note(self, names: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Note fields that have been read."""
        self._found.update(zip(names, values, strict=True))

    async def read(self, *names: bytes) -> None:
        """Read these fields, and what else is wanted."""
        self.want(*names)
        for step in self.steps():
            self.note(step, await self._engine.read_at(b"HMGET", self.key, *step))

    async def read_needs(self, needs: Sequence[Need]) -> None:
        """Read the fields for needs."""
        for need in needs:
            self.want(*_fields_of(need))
        await self.read()
        await self.read_parents()

    def is_here(self, home: str, path: bytes) -> bool:
        """Return whether the plan has a stage on the queue whose items are read, if that is not the home."""
        try:
            found = home == self._engine.name or _PLACE.decode(self._found[definition_field(path)] or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return found is True or found.queue == self._engine.name

    @property
    def without_result(self) -> list[bytes]:
        """The paths of the stages without a result among those that were read."""
        return [name[2:] for name, value in self._found.items() if value is None and name.startswith(b"r:")]

    async def read_parents(self) -> None:
        """Read of stages without a result whether they have children."""
        if without := self.without_result:
            await self.read(*(field for path in without for field in _of_parent(path)))

    def get(self, name: bytes) -> bytes | None:
        """Return a field that has been read; None: the run does not have it."""
        return self._found[name]

    def text(self, name: bytes) -> str:
        """Return a field that has been read as a text; empty: the run does not have it."""
        return (self._found[name] or b"").decode(errors="replace")


def _fields_of(need: Need, depth: int = 0) -> Iterator[bytes]:
    """Yield the fields of a run that are read first for a need."""
    if isinstance(need, list) and depth < MAX_DEPTH:
        for one in need:
            yield from _fields_of(one, depth + 1)
    elif isinstance(need, str):
        if need.startswith("@"):
            yield b"a:" + as_bytes(need[1:].partition(".")[0])
        elif need.startswith("?"):
            yield b"r:" + as_bytes(need[1:])
        else:
            stage = need.removesuffix("/*")
            yield b"r:" + as_bytes(stage)  # the name of a task may have dots
            if "." in stage:
                yield b"r:" + as_bytes(stage.partition(".")[0])


async def _value_of(fields: _Fields, need: Need, depth: int = 0) -> bytes | None:
    """Return what a need gives, in JSON; None: the run does not have it."""
    if isinstance(need, list) and depth < MAX_DEPTH:
        guard = _guard_of(need)
        if guard is not None and fields.get(b"r:" + as_bytes(guard)) is None:
            return None
        parts = need if guard is None else need[1:]
        values = [await _value_of(fields, one, depth + 1) for one in parts]
        return _list([value for value in values if value is not None])
    if not isinstance(need, str):
        return None
    if need.startswith("@"):
        name, _, members = need[1:].partition(".")
        return _member(fields.get(b"a:" + as_bytes(name)), members)
    stage = need.removesuffix("/*")
    name, _, members = stage.partition(".")
    result = fields.get(b"r:" + as_bytes(stage))
    if result is None and members:
        result = _member(fields.get(b"r:" + as_bytes(name)), members)
    return await _children_of(fields, as_bytes(stage)) if result is None else result


def _guard_of(needs: list[Need]) -> str | None:
    """Return the name of the stage without whose result there is no list of these; None: there is none."""
    first = needs[0] if needs else None
    return first[1:] if isinstance(first, str) and first.startswith("?") else None


def _member(value: bytes | None, path: str) -> bytes | None:
    """Return the member of a JSON object that a path of names leads to; None: there is none."""
    for name in path.split(".") if path else ():
        try:
            found = None if value is None else _MEMBERS.decode(value).get(name)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        value = None if found is None else bytes(found)
    return value


def _of_parent(path: bytes) -> tuple[bytes, ...]:
    """Return the fields that say whether a stage has fanned out, to how many children, and how these join."""
    return b"s:" + path, b"j:" + path, b"m:" + path


async def _children_of(fields: _Fields, path: bytes) -> bytes | None:
    """Return the list of the results of the children of a stage that have succeeded; of a chain, its last.

    None: the stage has not fanned out, or its children are not joined.
    """
    await fields.read(*_of_parent(path))
    counts = (fields.get(b"j:" + path) or b"").split()
    if len(counts) < COUNTS_OF_CHILDREN or fields.get(b"s:" + path) != b"d":
        return None
    if fields.get(b"m:" + path) == CHAIN.encode():
        last = b"%b/%d" % (path, int(counts[0]) - 1)
        await fields.read(b"r:" + last)
        result = fields.get(b"r:" + last)
        return await _children_of(fields, last) if result is None else result
    results = []
    for at in range(0, int(counts[0]), FIELDS_PER_READ // 2):
        some = [b"%b/%d" % (path, i) for i in range(at, min(at + FIELDS_PER_READ // 2, int(counts[0])))]
        await fields.read(*(kind + child for child in some for kind in (b"s:", b"r:")))
        for child in some:
            if fields.get(b"s:" + child) == b"d":
                result = fields.get(b"r:" + child)
                results.append(await _children_of(fields, child) if result is None else result)
    return _list([result for result in results if result is not None])


def _list(values: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(values) + b"]"
