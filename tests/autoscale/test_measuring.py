"""Signals from samples of counters: exact arrivals, service times, and what is left out."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasequeue import Item, views
from leasequeue.autoscale import Signals, measure
from leasequeue.autoscale.arrivals import ArrivalCounts, Count, arrivals, follow
from leasequeue.autoscale.measuring import REMEMBERED
from leasequeue.queue.queue import engine_of
from tests.autoscale.measured_job import EVERY, NOW, Job, arrived, stats_of, worker_of

if TYPE_CHECKING:
    from tests.queue.fixtures import MakeQueue


def test_one_sample_has_no_rates_and_two_have() -> None:
    job = Job()
    job.waiting, job.leases = 50, 7_000
    first = job.measure()
    assert (first.waiting, first.arrival_rate, first.lease_rate, first.service_time) == (50, 0, 0, None)
    job.waiting, job.leases = 40, 7_030
    second = job.measure()
    assert (second.arrival_rate, second.lease_rate, second.arrival_trend) == (2.0, 3.0, 0)


def test_it_is_known_for_how_long_no_item_was_leased() -> None:
    job, found = Job(), []
    for leases in (7, 7, 7, 8, 8):
        job.leases = leases
        found.append(job.measure().since_lease)
    assert found == [0, EVERY, 2 * EVERY, 0, EVERY]


@pytest.mark.seed("RWQ-O23")
def test_arrivals_are_exact_however_fast_items_are_worked_off() -> None:
    """What a worker takes between two samples has a token, so nothing is missed."""
    job, draw = Job(), Random(1)
    entered, signals = 0, job.measure()
    for _ in range(100):
        arrivals = draw.randint(90, 110)
        entered += arrivals
        begun = draw.randint(0, job.waiting + arrivals)
        job.waiting += arrivals - begun
        job.leases += begun
        signals = job.measure()
    assert signals.arrival_rate == pytest.approx(entered / 1000, rel=0.02)
    window = job.memory["window"]
    assert isinstance(window, list)
    assert sum(items for _, items in window) == entered


def test_the_service_time_is_that_of_the_runs_of_workers_that_come_and_go() -> None:
    job, draw, signals = Job(), Random(3), Signals()
    for step in range(200):
        for name in (f"steady-{step % 3}", f"spot-{step // 4}"):
            job.work(name, *(draw.expovariate(1 / 4.0) for _ in range(5)))
        job.workers.pop(f"spot-{step // 4 - 1}", None)
        signals = job.measure()
    assert signals.service_time == pytest.approx(4, rel=0.12)
    assert signals.service_variation == pytest.approx(1, rel=0.4)


def test_what_workers_did_before_they_were_first_seen_counts_a_little() -> None:
    job = Job()
    job.work("old", *[8.0] * 5_000)
    assert job.measure().service_time == 8
    job.work("old", *[2.0] * 20)
    assert job.measure().service_time == pytest.approx((30 * 8 + 20 * 2) / 50)


def test_a_service_time_that_changes_is_followed_and_chance_is_not() -> None:
    job, draw = Job(), Random(7)
    found: list[float] = []
    for _ in range(200):
        job.work("one", *(draw.expovariate(1 / 8.0) for _ in range(20)))
        found.append(job.measure().service_time or 0)
    assert max(found[50:]) < 8.8
    assert min(found[50:]) > 7.2
    for _ in range(8):
        job.work("one", *(draw.expovariate(1 / 2.0) for _ in range(20)))
        found.append(job.measure().service_time or 0)
    assert found[-1] < 3.5, "of 1,160 items, the last 160"


def test_the_long_runs_at_the_end_of_a_burst_are_no_change() -> None:
    """100 workers begin 1,000 items; the last 100 runs end alone, the longest ones last."""
    job, draw, found = Job(), Random(11), list[float]()
    for _ in range(6):
        times = [draw.gammavariate(4, 5 / 4) for _ in range(1_000)]
        times = times[:900] + sorted(times[900:])
        for at in range(0, 1_000, 50):
            job.leased = min(100, 950 - at)
            job.work("one", *times[at : at + 50])
            found.append(job.measure().service_time or 0)
    assert max(found[60:]) < 5.5
    assert min(found[60:]) > 4.5


def test_a_worker_that_starts_again_under_its_name_is_a_new_one() -> None:
    job = Job()
    job.work("one", *[3.0] * 100)
    job.measure()
    del job.workers["one"]
    job.work("one", *[3.0] * 10)
    job.measure()
    job.work("one", *[3.0] * 10)
    assert job.measure().service_time == 3


def test_long_runs_are_not_hidden_by_the_quick_ones_that_end_first() -> None:
    job = Job()
    job.workers["one"] = worker_of(id="one", running=(300.0, 12.0))
    assert job.measure().service_time == 300, "it takes that long at least"
    job.workers["one"] = worker_of(id="one", items=3, seconds=3, squares=3, running=(500.0, 0.5))
    assert job.measure().service_time == pytest.approx((3 + 500) / 4)
    job.workers["one"] = worker_of(id="one", items=3, seconds=3, squares=3)
    assert job.measure().service_time == 1


def test_of_many_workers_always_the_same_are_remembered() -> None:
    job = Job()
    for name in range(500):
        job.work(f"w{name}", 2.0)
    signals = job.measure()
    for _ in range(30):
        for name in range(500):
            job.work(f"w{name}", 4.0)
        signals = job.measure()
    workers = job.memory["workers"]
    assert isinstance(workers, dict)
    assert len(workers) == REMEMBERED
    assert signals.service_time == pytest.approx(4, rel=0.1)
    assert signals.ready == 500


def test_without_registrations_items_are_held_as_long_as_littles_law_says() -> None:
    job = Job()
    job.leased = 20
    signals = job.measure()
    assert signals.service_time is None
    for _ in range(20):
        job.leases += 50
        signals = job.measure()
    assert signals.service_time == pytest.approx(20 / 5)


def test_a_worker_that_has_just_registered_is_measured_by_its_leases() -> None:
    """It registers with its first runs, of 1 ms yet, and says no more for 10 s."""
    job = Job()
    job.workers["one"] = worker_of(id="one", running=(0.001, 0.001))
    job.leased = 2
    assert job.measure(1).service_time == 0.001
    found: list[Signals] = []
    for _ in range(4):
        job.leases += 10
        found.append(job.measure(1))
    assert found[-1].service_time == pytest.approx(2 / 10)
    job.work("one", *[0.25] * 20)
    assert job.measure(1).service_time == pytest.approx(0.25)


def test_what_dead_workers_have_left_waits() -> None:
    sample = stats_of(
        waiting=5,
        leased=9,
        leases=90,
        scheduled=7,
        due=2,
        due_soon=4,
        expired=3,
        orphaned=1,
        oldest_age=8.0,
        limit=0,
        workers=(
            worker_of(id="a", concurrency=4),
            worker_of(id="b", concurrency=3, alive=False),
        ),
    )
    signals = measure(sample, {}, NOW).signals
    assert (signals.waiting, signals.leased, signals.abandoned) == (5 + 2 + 3 + 1, 5, 4)
    assert (signals.due_soon, signals.oldest_age, signals.limit, signals.ready) == (4, 8.0, 0, 4)


def test_an_item_that_is_reclaimed_does_not_arrive_twice() -> None:
    """It arrives when its lease expires, not again when it is requeued."""
    memory: dict[str, object] = {}
    counts = []
    for at, (waiting, leased, expired) in enumerate([(0, 10, 0), (0, 10, 10), (10, 0, 0), (10, 0, 0)]):
        sample = stats_of(waiting=waiting, leased=leased, leases=50, expired=expired)
        signals, memory = measure(sample, memory, NOW + at * EVERY)
        assert signals.waiting == (0 if at == 0 else 10)
        counts.append(memory["last"])
    assert counts == [[], [(EVERY, 10)], [(EVERY, 0)], [(EVERY, 0)]]


def test_counters_that_go_back_and_clocks_that_jump_are_left_out() -> None:
    job = Job()
    job.steady(lambda _: 5, 40)
    for seconds, leases in ((EVERY, 3), (-3600.0, 53), (0.0, 53), (1e9, 103)):
        job.leases = leases
        assert job.measure(seconds).arrival_rate == 5, (seconds, leases)
    job.waiting, job.leases = 500, 153
    job.measure()
    job.waiting = 0  # it was purged, or another client has taken all
    assert job.steady(lambda _: 5, 3)[-1].arrival_rate == pytest.approx(5, rel=0.1)


@pytest.mark.parametrize(
    "memory",
    [
        {"at": "x"},
        {"at": NOW},
        {"window": 7},
        {"window": [[0, 1]]},
        {"last": [[-1, 1]]},
        {"aside": [[0, 0]]},
        {"at": float("nan")},
        {"leases": 1e300},
        {"done": [1]},
        {"late": [1, -1, 1]},
        {"workers": {"a": [1, 2, "x"]}},
        {"held": None},
        {"still": -1},
        {"demand": 10**400},
    ],
    ids=str,
)
def test_a_memory_of_another_make_counts_as_none(memory: dict[str, object]) -> None:
    job = Job()
    job.steady(lambda _: 5, 3)
    spoiled = {**job.memory, **memory} if len(memory) == 1 and "at" not in memory else memory
    signals, found = measure(stats_of(waiting=1, leased=0, leases=999), spoiled, job.now + EVERY)
    assert (signals.waiting, signals.arrival_rate) == (1, 0)
    assert measure(stats_of(waiting=1, leased=0, leases=1009), found, job.now + 20).signals.arrival_rate == 1


VALUES = st.one_of(st.integers(-5, 10**18), st.floats())


@settings(max_examples=60, deadline=None)
@example([[1, 1e-200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NOW, 0]], Random(1))
@given(st.lists(st.lists(VALUES, min_size=14, max_size=14), max_size=6), st.randoms())
def test_any_counters_have_signals(rows: list[list[float]], draw: Random) -> None:
    memory: dict[str, object] = {}
    now = NOW
    for row in rows:
        worker = worker_of(
            id=draw.choice("ab"),
            items=int_of(row[0]),
            seconds=row[1],
            squares=row[2],
            running=(row[3], row[4]),
        )
        counts = dict(
            zip(("waiting", "leased", "leases", "due", "due_soon", "expired"), row[5:11], strict=True)
        )
        sample = stats_of(
            **{name: int_of(value) for name, value in counts.items()}, oldest_age=row[11], workers=(worker,)
        )
        now = draw.choice([now + 10, now, row[12]])
        signals, memory = measure(sample, memory, now)
        for value in (
            *(signals.waiting, signals.leased, signals.abandoned, signals.due_soon, signals.oldest_age),
            *(signals.arrival_rate, signals.arrival_variation, signals.lease_rate, signals.service_time or 0),
            *(signals.service_variation, signals.ready),
        ):
            assert 0 <= value < math.inf
        assert math.isfinite(signals.arrival_trend)


def int_of(value: float) -> int:
    """Return a count, whatever its sign."""
    return int(value) if math.isfinite(value) else 0


@pytest.mark.seed("RWQ-O23")
async def test_a_queue_is_measured(make_queue: MakeQueue) -> None:
    now = NOW
    clock = make_queue(clock=lambda: now)
    about = {"worker": "lh:1", "concurrency": 3, "items": 4, "item_seconds": 8.0, "item_squares": 18.0}
    await engine_of(clock).registry.beat(about, alive_ms=600_000, first=True)
    await clock.limits.set(concurrency=7)
    memory: dict[str, object] = {}
    signals = Signals()
    for _ in range(3):
        await clock.add_items([Item(b"x") for _ in range(30)])
        await clock.complete_many(await clock.lease_many(5, 60))
        await clock.add_item(Item(b"x"), delay=15)
        stats = await clock.stats(horizon=60)
        assert stats.counts == views.Counts(*await clock.counts())
        signals, memory = measure(stats, memory, stats.at)
        now += 20
    assert signals.waiting == 3 * 25 + 2, "of which two are due"
    assert signals.due_soon == 1
    assert signals.arrival_rate == pytest.approx((30 + 1) / 20, rel=0.1)
    assert (signals.service_time, signals.ready, signals.limit) == (2.0, 3, 7)
    assert 20 <= signals.oldest_age <= 60
    await clock.pause()
    assert measure(await clock.stats(), {}, NOW).signals.limit == 0


# ------------------------------------------------------------------------------------------ rates of arrivals


@pytest.mark.parametrize("rate", [0.2, 2, 50, 3_000])
def test_a_steady_rate_is_measured_more_exactly_with_time(rate: float) -> None:
    found = Job().steady(lambda _: rate, 400, Random(rate))
    late = [one.arrival_rate / rate for one in found[200:]]
    assert max(late) < 1 + 0.5 / math.sqrt(rate * 10) + 0.02
    assert min(late) > 1 - 0.5 / math.sqrt(rate * 10) - 0.02
    assert sum(one.arrival_variation for one in found) / 400 == pytest.approx(1, rel=0.25)
    assert sum(one.arrival_trend != 0 for one in found) < 12


@pytest.mark.parametrize(("before", "after"), [(1, 10), (50, 80), (10, 1), (50, 20), (0, 5), (5, 0)])
def test_a_jump_is_followed_in_two_passes(before: float, after: float) -> None:
    job = Job()
    job.steady(lambda _: before, 60, Random(4))
    one, two, *_ = job.steady(lambda _: after, 6, Random(5))
    assert two.arrival_rate == pytest.approx(after, rel=0.3)
    if after > before:
        assert one.arrival_rate == pytest.approx(before, rel=0.2), "one count may be a burst"


def test_a_burst_is_not_taken_for_a_rate() -> None:
    job = Job()
    job.steady(lambda _: 1, 60, Random(4))
    job.waiting += 2_000
    rates = [job.steady(lambda _: 1, 1, Random(at))[0].arrival_rate for at in range(30)]
    assert max(rates) < 1.2
    assert min(rates) > 0.8


def test_a_rate_that_begins_between_two_passes_is_followed_in_the_second() -> None:
    job = Job()
    job.steady(lambda _: 0, 60)
    job.leases += 2
    assert job.measure().arrival_rate < 0.01
    job.leases += 27
    assert job.measure().arrival_rate == 2.7
    # After a single item, so many at once may be a burst.
    other = Job()
    other.steady(lambda _: 0, 60)
    other.leases += 1
    other.measure()
    other.leases += 1_000
    assert other.measure().arrival_rate < 0.01


def test_a_count_that_is_high_next_to_a_very_high_one_confirms_it() -> None:
    """Few items that begin to come: 6 of them are far above nothing, and 3 are above it."""
    job = Job()
    job.steady(lambda _: 0, 60)
    job.leases += 6
    assert job.measure().arrival_rate < 0.01
    job.leases += 3
    assert job.measure().arrival_rate == pytest.approx(0.45)


def test_a_ramp_has_a_trend() -> None:
    job = Job()
    found = job.steady(lambda at: 100 + at * 0.05, 60)
    assert found[-1].arrival_rate == pytest.approx(100 + 600 * 0.05, rel=0.04)
    assert any(0.04 < one.arrival_trend < 0.06 for one in found)


def test_batches_are_a_variation() -> None:
    """20 items at once, at random times: the variance of the counts is 20 times the mean."""
    job, draw = Job(), Random(2)
    found: list[Signals] = []
    for _ in range(300):
        job.leases += 20 * arrived(draw, 5)
        found.append(job.measure())
    assert sum(one.arrival_variation for one in found[30:]) / 270 == pytest.approx(20, rel=0.3)
    assert sum(one.arrival_rate for one in found[30:]) / 270 == pytest.approx(10, rel=0.1)


def test_a_higher_rate_is_believed_as_far_as_it_has_lasted() -> None:
    trial, idle = 200.0, Count(10.0, 0.0)
    counts = ArrivalCounts()
    for _ in range(30):
        counts = follow(counts, idle, trial)
    believed = []
    for _ in range(30):
        counts = follow(counts, Count(10.0, 1_000.0), trial)
        believed.append(arrivals(counts, trial).rate)
    assert believed[0] == 0, "one count may be a burst"
    assert believed[1] == pytest.approx(2_000 / trial), "as if they came in the whole time"
    assert believed == sorted(believed)
    assert believed[18] == pytest.approx(95)
    assert believed[19:] == [pytest.approx(100)] * 11


def test_a_burst_of_several_counts_is_believed_as_if_it_were_spread() -> None:
    trial = 200.0
    counts = ArrivalCounts()
    for items in [0.0] * 30 + [300.0, 2_400.0, 900.0] + [0.0] * 10:
        counts = follow(counts, Count(10.0, items), trial)
        assert arrivals(counts, trial).rate <= 1.5 * 3_600 / trial
    assert arrivals(counts, trial).rate == 0


def test_a_rate_that_returns_to_what_it_was_is_believed_at_once() -> None:
    trial = 200.0
    counts = ArrivalCounts()
    for items in [100.0] * 60 + [20.0] * 30:
        counts = follow(counts, Count(10.0, items), trial)
    assert arrivals(counts, trial).rate == pytest.approx(2)
    assert arrivals(counts, 0.0).rate == pytest.approx(2), "a fall is believed at once"
