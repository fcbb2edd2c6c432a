"""What a check of a queue can find, and what is done about it: the only declaration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: How many ids or names a finding has at most.
MAX_EXAMPLES = 5


class Problem(StrEnum):
    """A problem of the keys of a queue. The scripts report it by its value.

    Attributes:
        found: What is wrong.
        repair: What was done about it; empty: nothing.
        advice: If nothing was done, what you can do.
    """

    found: str
    repair: str
    advice: str

    def __new__(cls, name: str, found: str, repair: str, advice: str = "") -> Self:  # noqa: D102 - the line of each calls it
        problem = str.__new__(cls, name)
        problem._value_ = name
        problem.found, problem.repair, problem.advice = found, repair, advice
        return problem

    LOST_ITEM = "lost_item", "an item is in no list", "requeued, to the end"
    LOST_LEASE = (
        "lost_lease",
        "an item has the lease keys of a lease, and no entry in `P:deadlines`",
        "the entry was written; the lease expires with the keys",
    )
    LOST_DELAY = (
        "lost_delay",
        "an item has the lease key of a delay, and no entry in `P:scheduled`",
        "the entry was written; the item falls due when the key expires",
    )
    LOST_INBOX = (
        "lost_inbox",
        "an inbox of a session that is not registered has ids",
        "requeued, to the front",
    )
    GHOST = "ghost", "an id without data is in the queue", "dropped"
    TWO_PLACES = (
        "two_places",
        "an id is in the queue twice; or in the queue or scheduled, and leased or scheduled",
        "the entry was dropped that waits longer: a lease precedes a delay, which precedes the queue",
    )
    LEASE_WITHOUT_ITEM = "lease_without_item", "an entry of `P:deadlines` has no data", "dropped"
    LEASE_WITHOUT_TOKEN = (
        "lease_without_token",
        "a leased item has no entry in the ledger, so no outcome of it can be accepted",
        "requeued, to the front",
    )
    WRONG_LEASE_END = (
        "wrong_lease_end",
        "a lease ends in more than 31 days, or was given in the future: the clock of the server was ahead",
        "it ends with its lease keys, or now; or as long from now as it was given for",
    )
    LOST_LEASE_KEY = (
        "lost_lease_key",
        "a leased or scheduled item has no lease key, by which clients of other libraries leave it alone",
        "written",
    )
    LOST_PROCESSING_ENTRY = "lost_processing_entry", "a leased item is not in `P:processing`", "added"
    DELAY_WITHOUT_ITEM = "delay_without_item", "an entry of `P:scheduled` has no data", "dropped"
    WRONG_DUE_TIME = (
        "wrong_due_time",
        "an item falls due after the year 9999",
        "it falls due when its lease key expires, or now",
    )
    RECORD_WITHOUT_ITEM = (
        "record_without_item",
        "an entry of the ledger has no data: a client of another library has completed the item",
        "dropped",
    )
    UNREADABLE_RECORD = (
        "unreadable_record",
        "an entry of the ledger cannot be read",
        "dropped; if the item is leased, it is requeued",
    )
    WRONG_FENCE = (
        "wrong_fence",
        "`P:fence` is missing, or lower than a token of the ledger",
        "set to the highest token or, if it was missing, to the time in µs",
    )
    FACT_WITHOUT_ITEM = (
        "fact_without_item",
        "an entry of `P:options`, `P:errors` or `P:progress` has no item",
        "dropped",
    )
    UNREADABLE_OPTIONS = (
        "unreadable_options",
        "the options of an item cannot be read",
        "moved to `P:lost:options`; the item has no options",
    )
    UNREADABLE_LANE_ENTRY = (
        "unreadable_lane_entry",
        "an entry of `P:lanes` cannot be read, or has a score",
        "the score was set to 0, or the entry dropped; its item is in no list then",
    )
    LOST_TURN = (
        "lost_turn",
        "a group with waiting items has no turn, or its level is not in `P:levels`",
        "it has its turn now",
    )
    LATE_TURN = (
        "late_turn",
        "a group or a level waits for its turn, and no limit or pause is the reason",
        "it has its turn now",
    )
    TURN_WITHOUT_LANE = (
        "turn_without_lane",
        "a key `P:turns:<50 - level>` exists, and neither `P:lanes` nor `P:levels`",
        "dropped",
    )
    LOST_SLOT = (
        "lost_slot",
        "a leased item of a group is not counted against the group's limit",
        "it is counted",
    )
    STALE_SLOT = (
        "stale_slot",
        "an item is counted against the limit of a group, and is not leased, or of another group",
        "dropped",
    )
    LOST_GROUP = (
        "lost_group",
        "a leased item is counted against the limit of a group, and has no options",
        "its group was written again",
    )
    UNREADABLE_LIMIT = (
        "unreadable_limit",
        "a limit or a pause in `P:control` cannot be read",
        "moved to `P:lost:control`; there is no such limit",
    )
    WRONG_PAUSE = (
        "wrong_pause",
        "a pause for a time begins in the future: the clock of the server was ahead",
        "it lasts as long from now",
    )
    LOST_RUN = "lost_run", "a set of flow runs has the id of one without a hash", "dropped"
    UNLISTED_RUN = (
        "unlisted_run",
        "a flow run is not in the sets of its state and its values, or in others",
        "written",
    )
    UNREADABLE_RUN = (
        "unreadable_run",
        "the state or a number of a flow run cannot be read",
        "it has failed, now",
    )
    SETTLED_STAGE = (
        "settled_stage",
        "a stage of a flow run waited for an item that exists nowhere",
        "the stage has ended, and the run continues",
    )
    STUCK_STAGE = (
        "stuck_stage",
        "a stage of a flow run waits for an item that exists nowhere",
        "",
        "repair it by `runs.check()` or `leasequeue fsck`",
    )
    EXPIRING_RUN = (
        "expiring_run",
        "the hash of an unfinished flow run has a time to live",
        "removed: it stays until the run has ended",
    )
    ENDLESS_WINDOW = (
        "endless_window",
        "an id stays taken, or is noted as cancelled, for more than 31 days",
        "dropped",
    )
    STALE_TAG = "stale_tag", "an entry of `P:tags` has no item and no dead letter with the tag", "dropped"
    LOST_TAG = "lost_tag", "an item or a dead letter is not found by one of its tags", "written"
    STALE_UNSTARTED = (
        "stale_unstarted",
        "an entry of `P:unstarted` has no item with the key in its options",
        "dropped",
    )
    LOST_UNSTARTED = "lost_unstarted", "an item that was not started is not found by its key", "written"
    NO_DEAD_LETTER = "no_dead_letter", "an entry of `P:dead` has no dead letter", "dropped"
    UNLISTED_DEAD_LETTER = (
        "unlisted_dead_letter",
        "a dead letter is not in `P:dead`",
        "listed, as if the item had died now",
    )
    UNREADABLE_DEAD_LETTER = (
        "unreadable_dead_letter",
        "the attempt or the token of a dead letter is no number",
        "set to 0",
    )
    DEAD_LETTER_WITHOUT_DATA = (
        "dead_letter_without_data",
        "a dead letter has no data, so it cannot be requeued",
        "",
        "drop it",
    )
    DEAD_LETTER_OF_AN_UNFINISHED_ITEM = (
        "dead_letter_of_an_unfinished_item",
        "an item was made a dead letter, and exists",
        "the dead letter was dropped; the item is leased again",
    )
    WRONG_TIME_OF_DEATH = "wrong_time_of_death", "an item dies in the future", "it has died now"
    ENDLESS_SESSION = (
        "endless_session",
        "a session is registered for more than a minute",
        "it is registered for ten seconds",
    )
    LOST_HEARTBEAT = (
        "lost_heartbeat",
        "a registered worker has no entry in `P:heartbeats`",
        "it seems alive for 15 s; a worker that lives beats in that time",
    )
    LATE_HEARTBEAT = (
        "late_heartbeat",
        "a worker seems alive for longer than its heartbeat says, as the clock of the server was ahead",
        "it seems alive for that long from now",
    )
    LOST_WORKER = (
        "lost_worker",
        "an entry of `P:heartbeats`, or the order for a worker, has no registration",
        "it ends in 15 s, unless the worker registers again; an old entry, or the order, was dropped",
    )
    SCHEDULE_WITHOUT_TICK = (
        "schedule_without_tick",
        "a schedule is never due, and its definition cannot be read",
        "",
        "store the schedule again, or remove it",
    )
    LOST_TICK = "lost_tick", "a schedule is never due", "it is due at its next time"
    WRONG_TICK = (
        "wrong_tick",
        "a schedule is due later than at its next time: the clock of the server was ahead",
        "it is due at its next time",
    )
    TICK_WITHOUT_SCHEDULE = (
        "tick_without_schedule",
        "the due time or the data of a schedule is left, without the schedule",
        "dropped",
    )
    DECLARATION_WITHOUT_SCHEDULE = (
        "declaration_without_schedule",
        "a declaration of a schedule has no schedule, or cannot be read",
        "dropped; workers declare their schedules again",
    )
    NO_TIME_TO_LIVE = (
        "no_time_to_live",
        "a key has no time to live that must have one",
        "it has got one",
    )
    LOST_SETTING_OF_EVENTS = (
        "lost_setting_of_events",
        "a field of `P:events:keep` is missing or cannot be read",
        "written: the number of the last event, or a bound of 1,000 events",
    )
    RENAMED = (
        "renamed",
        "a key has a wrong type or, `P:fence`, is no number",
        "renamed to `P:lost:<rest of its name>`",
    )
    WRONG_TYPE = (
        "wrong_type",
        "a key has a wrong type or, `P:fence`, is no number; a script that needs it raises `WrongKeyType`",
        "",
        "look what it is; `fsck` renames it",
    )
    UNFINISHED_DELETION = (
        "unfinished_deletion",
        "the queue is being deleted: nothing is added to it or leased from it",
        "",
        "call `delete` or `leasequeue rm` again, if no client is doing so",
    )
    ENDLESS_FOREIGN_LEASE = (
        "endless_foreign_lease",
        "a lease key of a client of another library has no time to live, so the item stays leased",
        "",
        "delete the key if the client is gone",
    )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check has found of one problem."""

    #: Its name, a string.
    problem: Problem
    #: How often it was found.
    count: int
    #: Ids of items, names of schedules or sessions, or keys: five at most.
    examples: tuple[str, ...]

    @property
    def is_repaired(self) -> bool:
        """Whether it is repaired."""
        return bool(self.problem.repair)

    @property
    def found(self) -> str:
        """What was wrong."""
        return self.problem.found

    @property
    def done(self) -> str:
        """What was done about it or, if nothing was, what you can do."""
        return self.problem.repair or self.problem.advice

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.examples)) + (", …" if self.count > len(self.examples) else "")
        return f"{self.problem.value} ({self.count}: {shown})"


def joined(some: Iterable[Finding], others: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with one for each problem, in the order of `Problem`."""
    found: dict[Problem, list[Finding]] = {}
    for one in (*some, *others):
        found.setdefault(one.problem, []).append(one)
    return tuple(
        Finding(
            problem=problem,
            count=sum(one.count for one in found[problem]),
            examples=tuple(dict.fromkeys(name for one in found[problem] for name in one.examples))[
                :MAX_EXAMPLES
            ],
        )
        for problem in Problem
        if problem in found
    )


def read_repairs(repairs: Sequence[bytes]) -> tuple[Finding, ...]:
    """Return what a script has reported: a problem, and the id or name where it was found, and so on."""
    found: list[Finding] = []
    for at in range(0, len(repairs), 2):
        name = repairs[at + 1].decode(errors="backslashreplace")
        found.append(Finding(problem=Problem[repairs[at].decode().upper()], count=1, examples=(name,)))
    return joined(found, ())
