"""A call of each script that fits a given state, for the tests of interruptions, wrong types and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.queue.cleaning import CHECKED
from tests.lua.space import ME, Call
from tests.stateful.leftovers import DEAD, DEFINITION, IDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.stateful.leftovers import Drawn
    from tests.stateful.recovery import View

    Row = tuple[object, ...]
    Rows = list[Row]

#: How long what a call keeps or leases lasts, in ms: it ends in the first step of the recovery.
SHORT = 9_000
ABOUT = '{"name":"host/1","connections":[7]}'
STREAM: dict[str, object] = {"stream": "s", "reader": "r", "set": "s:1"}


class Draw:
    """Draws the rows of a call.

    Args:
        view: The keys.
        drawn: The state.
        random: Draws.
    """

    def __init__(self, view: View, drawn: Drawn, random: Random) -> None:
        self.view = view
        self.drawn = drawn
        self.random = random
        self.ids = random.sample(IDS, len(IDS))
        self.ids += random.sample(
            sorted(view.items.keys() - {*IDS}), min(20, len(view.items.keys() - {*IDS}))
        )
        # Some leases have expired, and some items are due.
        self.now = drawn.now + random.choice([0, 0, 700_000])

    def added(self) -> Rows:
        """Return rows that add items: known ids and a new one."""
        return [
            (one, f"new {one}", self.random.choice([0, 0, SHORT]), self.random.choice(HOW))
            for one in self.random.sample([*self.ids, "new"], 6)
        ]

    def held(self, *choices: list[object]) -> Rows:
        """Return rows of all ids with their tokens, most of them current, and values drawn for each."""
        old = dict(self.drawn.held)
        rows: Rows = []
        for one in self.ids:
            token = self.view.last_token(one) or old.get(one, 1)
            rows.append((one, token, *(self.random.choice(choice) for choice in choices)))
        return rows

    def stages(self) -> Rows:
        """Return rows that finish items of a flow run that is gone: flow runs have separate tests."""
        return [
            (*row[:3], "home\0run\0stage", row[3], "1", "") for row in self.held([0, 1], ["done", "drop"])
        ]

    def dead(self) -> Rows:
        """Return rows of the ids of dead letters, and of one that is none."""
        return [
            *((one,) for one in self.random.sample(sorted(self.view.dead), len(self.view.dead))),
            ("none",),
        ]

    def ticks(self) -> Rows:
        """Return rows that tick schedules which are due, with items whose ids may exist."""
        due = self.view.zset("ticks")
        return [
            (name, DEFINITION, round(at), self.random.choice([f"{name}@1", "a", ""]), self.now + 60_000)
            for name, at in due.items()
        ]

    def limits(self) -> Rows:
        """Return rows that set some limits and remove others."""
        return [
            (field, self.random.choice(["", value]))
            for field, value in (
                ("rate", "1000:2"),
                ("concurrency", 2),
                ("concurrency/g", 1),
                ("rate/*", "9:1"),
            )
        ]

    def places(self) -> Rows:
        """Return rows that complete the items of a set."""
        places = self.view.set_places() or [(1, "a")]
        return [(one, token, self.random.choice(FENCED)) for token, one in places]


#: How an item is added: the mode, and options.
HOW: list[object] = [
    0,
    1,
    2,
    '0:{"tags":["t","u"]}',
    '2:{"tags":["u"]}',
    '0:{"weight":3,"unstarted":"k"}',
    '2:{"unstarted":"k","level":1}',
    '0:{"level":3}',
    f'0:{{"dedupe":{SHORT}}}',
    '1:{"group":"g"}',
    '2:{"level":-1}',
]
HOW += ['0:{"trace":"00-1a-2b-01"}']
FENCED: list[object] = [0, 0, 1, f"0:{SHORT}:result"]


def _checked(script: str) -> list[str]:
    """Return the keys that a script checks."""
    return [which for which, name in CHECKED.items() if name == script]


def _call(rows: Callable[[Draw], Rows] | None = None, /, **arguments: object) -> Callable[[Draw], Call]:
    """Return a function that draws a call of a script. An argument that is a list is drawn from it."""

    def drawn(draw: Draw) -> Call:
        chosen = {
            name: draw.random.choice(value) if isinstance(value, list) else value
            for name, value in arguments.items()
        }
        # Where the server has no MSETEX, a script that may use it is interrupted there.
        common = {
            "now_ms": draw.now,
            "return_front": int(draw.drawn.return_front),
            "set_many": draw.random.choice([0, 1]),
        }
        return Call("", rows(draw) if rows else [], common | chosen)

    return drawn


def _each_id(draw: Draw) -> Rows:
    return [(one,) for one in draw.ids]


_DRAWN: dict[str, Callable[[Draw], Call]] = {
    "add_items": _call(lambda draw: draw.added()[: draw.random.choice([1, 6])]),
    "add_once": _call(Draw.added, run="run", keep_ms=SHORT),
    "await_results": _call(_each_id, keep_ms=SHORT),
    "check_waiting": _call(),
    "clean_turn": _call(session=[ME, DEAD], deep=[0, 1], every_ms=SHORT),
    "close_queue": _call(count=[1, 500]),
    "cancel_data": _call(
        payload=["bulk", "", "foreign a"],
        keep_ms=[0, SHORT],
        state=["waiting", "leased", "scheduled"],
        cursor="0",
        count=[2, 99],
        at_most=99,
    ),
    "cancel_many": _call(lambda draw: [(one, draw.random.choice([0, SHORT])) for one in draw.ids]),
    "complete_many": _call(lambda draw: draw.held(FENCED)),
    "counts": _call(),
    "dead_list": _call(start=0, count=9),
    "deep_clean_restore": _call(
        _each_id, started_ms=[1, 1 << 50], step=["mark", "restore", "unmark"], clean=["", "m"]
    ),
    "deep_clean_scan": _call(cursor="0", pattern="*"),
    "deep_clean_walk": _call(),
    "delete_queue": _call(
        lambda draw: [(name,) for name in draw.random.choice([["item", "dead", "lease"], ["queue", "dead"]])],
        pattern="*",
        cursor=["0", ""],
        count=500,
    ),
    "drop_many": _call(Draw.dead),
    "drop_old": _call(count=[1, 100]),
    "end_leases": _call(Draw.held),
    "events_keep": _call(count=[0, 100], age_ms=[0, SHORT], publish=["", 0, 1], rollup=["", 0, 1]),
    "pause_queue": _call(of_group=["", "g"], until_ms=["", "inf"], reason="why"),
    "read_control": _call(cursor="0"),
    "set_limits": _call(Draw.limits),
    "events_read": _call(after="0"),
    "fail_session": _call(
        _each_id, worker=[ME, DEAD, "lh:gone"], expired=[0, 1], connections=["", "7"], ends=[0, 1]
    ),
    "fail_many": _call(lambda draw: draw.held([-1, -1, 0, SHORT], ["error"])),
    "find_many": _call(_each_id),
    "fsck_entries": _call(which=_checked("fsck_entries")),
    "fsck_lanes": _call(which=_checked("fsck_lanes")),
    "fsck_leases": _call(which=_checked("fsck_leases")),
    "fsck_keys": _call(pattern="*"),
    "fsck_queue": _call(which=["queue", "held"]),
    "fsck_twice": _call(which=["queue", "held"], item="a", met_at="0", met_again="1"),
    "fsck_runs": _call(which=["", "runs:active", "runs:ends"], pattern="*"),
    "fsck_tick": _call(schedule="hourly", definition=DEFINITION, due_ms=5, wrong_ms=-1),
    "fsck_rename": _call(made="queue", wanted="list"),
    "fsck_types": _call(lambda _: [("queue", "list"), ("ledger", "hash")]),
    "history_read": _call(which=["minute", "hour", "day"], cells=[1, 60]),
    "inspect": _call(state=["waiting", "leased", "scheduled"]),
    "lease_many": _call(lambda draw: [(draw.random.randint(1, 3), SHORT), (99, 2 * SHORT)]),
    "lease_set": _call(**STREAM | {"set": "s:2"}, known=0, count=[3, 99], hold_ms=SHORT, keep_ms=SHORT),
    "leave": _call(session=[DEAD, ME], stays=[0, 1]),
    "light_clean": _call(count=[2, 500]),
    "hold_take": _call(hold_name="h", ticket=["1 lh:me#1", "2 lh:me#2"], for_ms=SHORT, renews=[0, 0, 1]),
    "hold_drop": _call(hold_name="h", ticket=["1 lh:me#1", "2 lh:me#2"]),
    "hold_limits": _call(lambda _: [("concurrency/h", "1"), ("rate/h", "100000:3")]),
    "group_ids": _call(of_group=["", "g"], state=["waiting", "leased", "scheduled"], cursor=""),
    "list_groups": _call(first=["", "g"], count=[1, 100], exact=[0, 1]),
    "list_tags": _call(first=["", "t"], count=[1, 100]),
    "tagged": _call(tag=["t", "u"], after=["", "a"], count=[1, 100]),
    "list_leases": _call(cursor="0", elapsed_ms=[0, SHORT]),
    "list_ids": _call(state=["waiting", "leased"], cursor="0"),
    "once_drop": _call(run="run", job="job", ended_ms=SHORT, keep_ms=[0, SHORT], report="report"),
    "once_run": _call(job="job", run="another", keep_ms=SHORT),
    "move_items": _call(source="another", spot="queue", left_out=0),  # see tests/queue/test_moving.py
    "open_shards": _call(layout=["4 id", "8 group"]),
    "set_format": _call(to=1, floor=1, known=[1, 2], version="0.1.0"),
    "probe": _call(),
    "purge_queue": _call(
        source=["queue", "queue", "scheduled", "inboxes", "held", "lanes"], count=[2, 500, 0], purged=3
    ),
    "recover": _call(Draw.held, elapsed_ms=0, hold_ms=SHORT, max_bytes=[1, 1 << 20]),
    "progress": _call(lambda draw: draw.held(['"half"'])),
    "emit_chunks": _call(lambda draw: draw.held(["emitted", "logged"], [SHORT], [99], ["", "chunk"])),
    "read_chunks": _call(lambda _: [("a", "emitted", "0-0"), ("b", "logged", "1-1")]),
    "promote": _call(item=IDS),
    "set_priority": _call(item=IDS, new_level=[-1, 0, 3]),
    "register": _call(lambda _: [("1 a",)], keep_ms=SHORT, lease_ms=["", SHORT]),
    "release_many": _call(lambda draw: draw.held([0, 0, SHORT], [0, 1])),
    "renew_many": _call(lambda draw: draw.held([SHORT, 900_000])),
    "replace_data": _call(lambda draw: [(*row, f"new {row[0]}") for row in draw.held()]),
    "requeue_many": _call(Draw.dead, max_bytes=[1, 1 << 20]),
    "result": _call(_each_id),
    "run_delete": _call(run=["run", "ended"], is_last=[0, 1]),
    "run_finish": _call(Draw.stages),
    "run_report": _call(lambda draw: [("home\0run\0stage", draw.random.choice(["done", "signal"]), "1")]),
    "run_settle": _call(lambda draw: draw.random.choice([[], [("a",)]]), cursor="0"),
    "run_once": _call(item=["a", "b"], lease=[1, 2], of_stage="home\0run\0stage", step="charge", outcome="1"),
    "run_start": _call(
        lambda _: [("stages", '["s"]'), ("first", '["s"]'), ("n:s", "{}"), ("keep", SHORT)],
        of_run=["run", "new"],
        builder=["", "b"],
        is_first=1,
        seal=0,  # see tests/lua/test_runs_interrupted.py for the other calls of flow runs
    ),
    "run_cancel": _call(of_run=["run", "ended"], as_failed=["", "late"]),
    "run_forget": _call(Draw.dead),
    "run_reopen": _call(lambda _: [("s",), ("s/0",)], of_run="ended", caller="c", is_last=[0, 1]),
    "run_fields": _call(lambda _: [("r:a",)], run="run"),
    "runs_find": _call(lambda _: [("user_id", "62")], flow="", cursor=""),
    "runs_list": _call(state=["active", "failed"], of_all=[0, 1], flow="", cursor=""),
    "runs_read": _call(lambda _: [("run",), ("ended",)]),
    "sample_queue": _call(horizon_ms=["", 0, SHORT], note=[0, 1], every_ms=["", 0, SHORT]),
    "schedule_drop": _call(lambda _: [("hourly",), ("missing",)]),
    "schedule_put": _call(
        schedule=["hourly", "weekly"],
        definition=[DEFINITION, "1 all every 9 -"],
        due_ms=5,
        data=["", "new"],
        forget_ms=["", 0, SHORT],
    ),
    "schedules": _call(cursor="0"),
    "schedules_expire": _call(cursor="0", keep_ms=[0, SHORT]),
    "session_leases": _call(lambda _: [(ME,), (DEAD,)], cursor="0", count=500),
    "set_complete": _call(Draw.places, **STREAM),
    "set_failures": _call(**STREAM, cursor="0"),
    "set_failures_put": _call(
        lambda draw: [(one, "-1 3 error") for one in draw.ids], **STREAM, anew=[0, 1], keep_ms=SHORT
    ),
    "set_read": _call(**STREAM, peek=0, give_up=1),
    "set_renew": _call(**STREAM, hold_ms=SHORT),
    "stream_hold": _call(
        lambda draw: [("s:1", draw.random.choice([0, SHORT])), ("s:2", SHORT)],
        **STREAM,
        take=1,
        keep_ms=SHORT,
    ),
    "tick": _call(Draw.ticks, max_bytes=[1, 1 << 20]),
    "ticks_due": _call(),
    "worker_beat": _call(session=[ME, DEAD, "lh:new"], alive_ms=["", SHORT], first=[0, 1], about=ABOUT),
    "worker_leave": _call(session=[ME, DEAD]),
    "worker_tell": _call(worker=[ME, "lh:gone"], what="quiet"),
    "workers": _call(cursor="0", count=[1, 500]),
}

#: A call of each script, drawn for a state.
CALLS = _DRAWN.keys()


def drawn_call(script: str, view: View, drawn: Drawn, random: Random) -> Call:
    """Draw a call of a script that fits a state."""
    return _DRAWN[script](Draw(view, drawn, random))._replace(script=script)
