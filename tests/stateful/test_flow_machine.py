"""A rule machine for flow runs: random plans, and random calls of workers and others, some of them stopped.

After each call every run is compared with its plan: a join has let in what it permits, and all of it; the
number of open stages is right; no result has changed; each open stage has an item, and no other has one. In
the end all workers return, and every run ends in one state; when it is deleted, no key of it is left.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from leasequeue.queue.plans.plan import sub_run_id
from leasequeue.queue.plans.stages import FinishRow, fan, report, settle
from leasequeue.queue.queue import engine_of
from tests.stateful.flows.cutting import stoppable_scripts
from tests.stateful.flows.plans import NAMES, fans, plans
from tests.stateful.flows.world import World
from tests.stateful.live import run_machine

if TYPE_CHECKING:
    from leasequeue import Lease
    from leasequeue.queue.plans.plan import ChildPlan

pytestmark = [pytest.mark.core, pytest.mark.slow, pytest.mark.timeout(1800)]

_names = itertools.count()
RUNS = st.sampled_from(["r1", "r2", "ü*"])
#: Also runs that stages of these wait for.
ALL_RUNS = st.one_of(RUNS, RUNS, st.builds(sub_run_id, RUNS, st.sampled_from(NAMES[:3])))
QUEUES = st.integers(0, 1)
#: The names of the queues stand for `home` and `other` in the plans that are drawn.
PLACES = ("home", "other")
#: How many examples the quick test takes, each time the same.
QUICK = 5
#: After how many writes a call stops; most do not.
STOPS = st.one_of(st.none(), st.none(), st.integers(0, 25))


class FlowMachine(RuleBasedStateMachine):
    """Calls two queues with flow runs, and lets the world check them."""

    url: str

    @initialize()
    def begin(self) -> None:
        self.world = World(self.url, f"flows-{next(_names)}")
        self.held: list[tuple[int, Lease]] = []

    @rule(run=RUNS, plan=st.data(), stop=STOPS)
    def start(self, run: str, plan: st.DataObject, stop: int | None) -> None:
        known = self.world.runs.get(run)
        if known is None or not known.before.state:
            drawn = plan.draw(plans(self.world.names))
            for stage in drawn.stages:
                if stage.flow:  # one plan for all runs of an id
                    self.world.inner.setdefault(
                        sub_run_id(run, stage.name), plan.draw(plans(self.world.names, at_most=3))
                    )
            self.world.start(drawn, run, stop=stop)
        else:
            assert self.world.start(known.plan, run, stop=stop) in {False, None}

    @rule(queue=QUEUES, count=st.integers(1, 4))
    def lease(self, queue: int, count: int) -> None:
        self.held += [(queue, lease) for lease in self.world.lease(queue, count)]

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), value=st.sampled_from([b"1", b"[]", b'{"a":1.50}']), stop=STOPS)
    def finish(self, pick: int, value: bytes, stop: int | None) -> None:
        queue, lease = self.held[pick % len(self.held)]
        if self.world.is_flow(lease):
            self.world.begin_inner(queue, lease, stop=stop)
        else:
            self.world.finish(queue, FinishRow(lease, "done", value), stop=stop)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), data=st.data(), stop=STOPS)
    def choose(self, pick: int, data: st.DataObject, stop: int | None) -> None:
        queue, lease = self.held[pick % len(self.held)]
        stage = self.world.stage_of(lease)
        if stage is not None and stage.choice and stage.then:
            chosen = data.draw(st.lists(st.sampled_from(stage.then), unique=True))
            self.world.finish(queue, FinishRow(lease, "done", b"1", json.dumps(chosen).encode()), stop=stop)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), fenced=st.booleans(), stop=STOPS)
    def fail(self, pick: int, fenced: bool, stop: int | None) -> None:  # noqa: FBT001 - Hypothesis fills it in
        queue, lease = self.held[pick % len(self.held)]
        self.world.finish(queue, FinishRow(lease, "failed", b"an error", fenced=fenced), stop=stop)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), drawn=fans(PLACES), stop=STOPS)
    def fan_out(self, pick: int, drawn: tuple[tuple[ChildPlan, ...], str], stop: int | None) -> None:
        queue, lease = self.held[pick % len(self.held)]
        places = dict(zip(PLACES, self.world.names, strict=True))
        rows = [child.on(lambda one: replace(one, queue=places[one.queue])).json() for child in drawn[0]]
        if not self.world.is_flow(lease):
            row = FinishRow(lease, "fan", b"[" + b",".join(rows) + b"]", drawn[1].encode())
            self.world.finish(queue, row, stop=stop)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), stop=STOPS)
    def go_on_fanning(self, pick: int, stop: int | None) -> None:
        queue, lease = self.held[pick % len(self.held)]
        self.world.call(lambda: fan(engine_of(self.world.queues[queue]), lease), stop=stop)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0))
    def do_as_a_worker(self, pick: int) -> None:
        self.world.work(*self.held.pop(pick % len(self.held)))

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), retry_in=st.sampled_from([0, 60]), stop=STOPS)
    def retry_later(self, pick: int, retry_in: int, stop: int | None) -> None:
        queue, lease = self.held[pick % len(self.held)]
        self.world.call(
            lambda: self.world.queues[queue].fail(lease, "once more", retry_in=retry_in), stop=stop
        )

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0))
    def end_in_another_way(self, pick: int) -> None:
        """Fail, complete or cancel an item as a client does that knows nothing of runs."""
        queue, lease = self.held[pick % len(self.held)]
        work = self.world.queues[queue]
        ways = (
            lambda: work.fail(lease, "plainly", retry_in=None),
            lambda: work.complete(lease),
            lambda: work.cancel(lease.id),
        )
        self.world.call(ways[pick % 3])

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), good=st.booleans(), stop=STOPS)
    def report(self, pick: int, good: bool, stop: int | None) -> None:  # noqa: FBT001 - Hypothesis fills it in
        queue, lease = self.held[pick % len(self.held)]
        stage = lease.stage
        assert stage is not None
        self.world.call(
            lambda: report(
                engine_of(self.world.queues[queue]), stage, result=b"2" if good else None, error="theirs"
            ),
            stop=stop,
        )

    @rule(run=ALL_RUNS, name=st.sampled_from(NAMES), value=st.integers(1, 3), stop=STOPS)
    def signal(self, run: str, name: str, value: int, stop: int | None) -> None:
        self.world.signal(run, name, value, stop=stop)

    @rule(queue=QUEUES, stop=STOPS)
    def settle(self, queue: int, stop: int | None) -> None:
        self.world.call(lambda: settle(engine_of(self.world.queues[queue])), stop=stop)

    @rule()
    def cancel_what_is_left(self) -> None:
        self.world.cancel_rests()

    @rule(run=ALL_RUNS, stop=STOPS)
    def cancel(self, run: str, stop: int | None) -> None:
        self.world.cancel(run, stop=stop)

    @rule(run=ALL_RUNS, stop=STOPS)
    def retry(self, run: str, stop: int | None) -> None:
        self.world.retry(run, stop=stop)

    @rule(run=ALL_RUNS, stop=STOPS)
    def delete(self, run: str, stop: int | None) -> None:
        self.world.delete(run, stop=stop)

    @rule()
    def check(self) -> None:
        self.world.call(self.world.home.flow_runs.check)

    @rule(queue=QUEUES)
    def purge(self, queue: int) -> None:
        self.world.call(self.world.queues[queue].admin.purge)

    @rule(seconds=st.sampled_from([1, 50, 120, 400]))
    def move_the_clock(self, seconds: int) -> None:
        self.world.now += seconds * 1000

    @rule(queue=QUEUES)
    def clean(self, queue: int) -> None:
        self.world.call(self.world.queues[queue].light_clean)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.recover()
        for run, known in [*world.runs.items()]:
            assert known.before.state != "active", f"{run} has not ended: {known.before}"
            world.delete(run)
        world.drop_letters()
        left = world.keys()
        world.close()
        assert left == set()


@pytest.mark.parametrize("examples", [QUICK, pytest.param(400, marks=pytest.mark.long)])
def test_every_run_keeps_to_its_plan(redis_url: str, examples: int) -> None:
    FlowMachine.url = redis_url
    with stoppable_scripts():
        run_machine(FlowMachine, examples, repeats=examples == QUICK)  # the long one searches
