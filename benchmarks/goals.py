"""The goals, by result file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.measure import Row

    Measure = Callable[[Sequence[Row]], float | None]


@dataclass(frozen=True)
class Goal:
    """One figure to reach."""

    sentence: str  #: with its number
    measure: Measure  #: takes the figure from the rows; None if its scenario was not run
    limit: float
    unit: str = "x"
    at_least: bool = False  #: whether the limit is a minimum
    margin: float = 1.5  #: the factor by which a noisy machine may miss it before `--check` fails

    def reached(self, measured: float, *, margin: float = 1.0) -> bool:
        """Whether a measured figure reaches the goal."""
        if self.at_least:
            return measured >= self.limit / margin
        return measured <= self.limit * margin

    @property
    def checked(self) -> bool:
        """Whether `--check` compares it: ratios and counts, but no times, which depend on the machine."""
        return self.unit not in ("ms", "µs")

    def line(self, measured: float) -> str:
        """Return the goal, the figure and the verdict."""
        verdict = "ok" if self.reached(measured) else "missed"
        return f"{self.sentence} … measured {measured:.3g} {self.unit} {verdict}"


def highest(
    scenario: str, what: str, who: str | None = "leasequeue", cost: str = "", **setting: int | str
) -> Measure:
    """Take the highest value, or figure of `Row.more`, of such rows; `who=None` takes all targets."""

    def measure(rows: Sequence[Row]) -> float | None:
        found = [
            row.more[cost] if cost else row.value
            for row in rows
            if (row.scenario, row.what) == (scenario, what)
            and who in (row.who, None)
            and setting.items() <= row.setting.items()
        ]
        return max(found, default=None)

    return measure


def ratio(above: Measure, below: Measure) -> Measure:
    """Divide one figure by another of the same run."""

    def measure(rows: Sequence[Row]) -> float | None:
        numerator, denominator = above(rows), below(rows)
        return numerator / denominator if numerator and denominator else None

    return measure


def growth(scenario: str, what: str, by: str, cost: str, **setting: int | str) -> Measure:
    """Divide the cost of an item at the largest size by that at the smallest."""

    def measure(rows: Sequence[Row]) -> float | None:
        sizes = sorted({int(row.setting[by]) for row in rows if row.scenario == scenario})
        if not sizes:
            return None
        settings: list[dict[str, Any]] = [{**setting, by: sizes[0]}, {**setting, by: sizes[-1]}]
        first, last = (highest(scenario, what, cost=cost, **each) for each in settings)
        return ratio(last, first)(rows)

    return measure


def worst(*measures: Measure) -> Measure:
    """Take the highest of some figures."""

    def measure(rows: Sequence[Row]) -> float | None:
        return max((value for each in measures if (value := each(rows)) is not None), default=None)

    return measure


def at_least(limit: float, sentence: str, measure: Measure, *, margin: float = 1.5) -> Goal:
    """Return a goal whose limit is a minimum."""
    return Goal(sentence, measure, limit, at_least=True, margin=margin)


def beside(who: str, scenario: str, what: str, **setting: int) -> Measure:
    """Divide the figure of Leasequeue by that of another target."""
    ours, theirs = (highest(scenario, what, one, "", **setting) for one in ("leasequeue", who))
    return ratio(ours, theirs)


def _cycles(who: str) -> Measure:
    ours = highest("cycle", "cycle", payload=100, coroutines=1_000)
    return ratio(ours, highest("cycle", "cycle", who, payload=100))


_QUEUE = (
    at_least(12, "whole cycle, 1,000 coroutines: at least 12 times the bare loop", _cycles("bare"), margin=2),
    at_least(
        0.6, "whole cycle, 1,000 coroutines: at least 0.60 of the ceiling", _cycles("ceiling"), margin=2
    ),
    *(
        Goal(
            f"one lone {name}: at most 1.15 times the bare EVALSHA",
            ratio(highest("lone", what, "bare"), highest("lone", what)),
            1.15,
            margin=1.3,
        )
        for name, what in (("add_item", "add"), ("lease", "lease"), ("complete", "complete"))
    ),
    *(
        Goal(
            f"100 to 100,000 in flight, completed {order}, {side}: at most 3 times as much",
            growth("flight", "complete", "in_flight", cost, order=order),
            3,
        )
        for order in ("in order", "in reverse", "at random")
        for side, cost in (("time per call", "us_per_item"), ("server µs", "script_us_per_item"))
    ),
    *(
        Goal(
            f"backlog of 1,000 to 1,000,000, lease {how}, {side}: at most 1.3 times as much",
            growth("backlog", "lease", "backlog", cost, coroutines=coroutines),
            1.3,
            margin=1.7,
        )
        for how, coroutines in (("alone", 1), ("of 500 at once", 500))
        for side, cost in (("time per item", "us_per_item"), ("server µs", "script_us_per_item"))
    ),
    Goal("1 to 200 waiters: 1 wake per added item", highest("idle", "wakes per item"), 1.05, "wakes"),
    Goal(
        "an idle waiter: less than 1 command a second",
        highest("idle", "commands per idle waiter"),
        1,
        "commands/s",
        margin=1,
    ),
    Goal(
        "item of a killed worker leased again within 50 ms (p99) after its lease expired",
        highest("kill", "lease end to leased again", cost="p99_ms"),
        50,
        "ms",
        margin=4,
    ),
    Goal("10,000 add_item at once: at most 42 EVALSHA", highest("gather", "trips"), 42, "EVALSHA", margin=1),
)
SLEEPING = "jobs of 50 ms, time over ideal"
_WORKER = (
    at_least(
        0.6,
        "jobs that do nothing, through a worker: at least 0.60 of the whole cycle by calls of the queue",
        ratio(highest("worker", "jobs that do nothing"), highest("worker", "whole cycle")),
    ),
    Goal(
        "2,000 jobs of 50 ms, 100 at once: at most 1.04 times the ideal",
        highest("worker", SLEEPING),
        1.04,
        margin=1.3,
    ),
    Goal(
        "an idle worker starts a due item within 50 ms (p99)",
        highest("worker_idle", "due to handler", cost="p99_ms"),
        50,
        "ms",
        margin=4,
    ),
)

_START = (
    Goal(
        "a worker's start to its first job: at most twice the CPU time of asyncio and redis-py to a reply",
        beside("bare", "start", "start to the first job"),
        2,
        margin=1.2,
    ),
    Goal(
        "leasequeue --help: at most 1.5 times the CPU time of a typer program with 28 empty commands",
        beside("bare", "start", "leasequeue --help"),
        1.5,
        margin=1.2,
    ),
)


_KILLS = (
    Goal(
        "SIGKILL to running again, noticed by peers: within 3 s (p99)",
        highest("kills", "SIGKILL to running again", cost="p99_ms", **{"noticed by": "peers"}),
        3_000,
        "ms",
    ),
    Goal(
        "SIGKILL to running again, noticed by the supervisor: within 0.2 s (p99)",
        highest("kills", "SIGKILL to running again", cost="p99_ms", **{"noticed by": "the supervisor"}),
        200,
        "ms",
        margin=4,
    ),
)


def _cost(side: str, what: str, queues: int, concurrency: int) -> Measure:
    """Divide the CPU time of a job of a worker with many queues by that of a worker with one."""
    cost = f"{side}_cpu_us_per_item"
    return ratio(
        highest("many", what, cost=cost, queues=queues, concurrency=concurrency),
        highest("many", "work in one queue", cost=cost, queues=1, concurrency=concurrency),
    )


def _durable(what: str, who: str = "leasequeue") -> Measure:
    """Divide the rate with a log that reaches the disk before each reply by the rate without a log."""
    return ratio(
        highest("durable", what, who, appendfsync="always"), highest("durable", what, who, appendfsync="off")
    )


_IDLE = "add to handler"
_CORE = (
    *(
        Goal(
            f"100 queues of which one has work, {side}: at most 1.1 times the µs of one queue",
            _cost(side, "work in one queue", 100, 100),
            1.1,
        )
        for side in ("client", "server")
    ),
    *(
        Goal(
            f"work in all of 100 queues, 1,000 at once, {side}: at most 1.3 times the µs of one queue",
            _cost(side, "work in all queues", 100, 1_000),
            1.3,
        )
        for side in ("client", "server")
    ),
    Goal(
        "idle, from add to handler: with 100 queues p50 at most 1.2 times that with one",
        ratio(highest("idle_worker", _IDLE, queues=100), highest("idle_worker", _IDLE, queues=1)),
        1.2,
    ),
    Goal(
        "idle, from add to handler: p50 at most 1.2 times the bare path",
        ratio(highest("idle_worker", _IDLE, queues=1), highest("idle_worker", _IDLE, "bare")),
        1.2,
    ),
    at_least(
        0.6,
        "lone add_item: at least 0.6 of the rate of a bare protocol",
        beside("bare", "single", "lone add"),
    ),
    Goal(
        "lone lease: at most 70 µs in the script",
        highest("where", "lease", cost="script_us_per_item", coroutines=1),
        70,
        "µs",
    ),
    *(
        at_least(0.5, f"appendfsync always, {what}: at least half of the rate without", _durable(what))
        for what in ("add many", "whole cycle", "worker")
    ),
    at_least(
        1.0,
        "appendfsync always, lone add: keeps as much of its rate as a bare protocol",
        ratio(_durable("lone add"), _durable("lone add", "bare")),
    ),
    *(
        Goal(
            f"lease of 100 from a queue with {lanes}, server: at most 1.5 times a plain one",
            ratio(
                highest("lanes", "lease", cost="server_cpu_us_per_item", lanes=lanes),
                highest("lanes", "lease", cost="server_cpu_us_per_item", lanes="plain"),
            ),
            1.5,
            margin=margin,
        )
        for lanes, margin in (("limited", 2), ("levels", 2), ("groups", 4), ("rate", 5), ("concurrency", 5))
    ),
    Goal(
        "at the rate of a group, 1 and 4 workers: at most 2 scripts an item",
        highest("lanes", "scripts at a rate limit"),
        2,
        "scripts/item",
        margin=1.6,
    ),
)


def _no_op(kind: str, results: str) -> Measure:
    return highest("tasks", "jobs that do nothing", kind=kind, results=results)


_TELEMETRY = (
    Goal(
        "no-op tasks with metrics: at most 1.03 of the CPU time without",
        highest("telemetry", "CPU beside off", telemetry="metrics"),
        1.03,
        margin=1.1,
    ),
)

_TASKS = (
    *(
        at_least(
            0.75,
            f"tasks that do nothing, {how}: at least 0.75 of plain items",
            ratio(_no_op("tasks", tasks), _no_op("plain items", plain)),
        )
        for how, tasks, plain in (
            ("neither with results", "none", "none"),
            ("both with results", "kept", "kept"),
            ("tasks with results, items without", "kept", "none"),
        )
    ),
    Goal(
        "10,000 callers in one process that wait for results: at most 2 connections",
        highest("waiters", "connections"),
        2,
        "connections",
        margin=1,
    ),
)


def _best(figure: str, **setting: Any) -> Measure:
    """Divide the figure of Leasequeue by that of the best other library on Redis."""
    return ratio(highest("drain", figure), highest("drain", figure, None, ours="no", on="Redis", **setting))


NATS, BEANSTALKD = "NATS JetStream, push", "beanstalkd, pipelined"
_RIVALS = (
    at_least(
        0.75,
        "no-op jobs: tasks at least 0.75 of plain items",
        beside("leasequeue, plain items", "drain", "drain_per_s"),
    ),
    at_least(3, "no-op jobs: at least 3 times BullMQ on Node", beside("bullmq", "drain", "drain_per_s")),
    at_least(
        15,
        "no-op jobs: at least 15 times the best other library in Python on Redis",
        _best("drain_per_s", runtime="Python"),
    ),
    *(
        at_least(1.2, f"no-op jobs: at least 1.2 times {who}", beside(who, "drain", "drain_per_s"))
        for who in (NATS, BEANSTALKD)
    ),
    *(
        Goal(f"no-op jobs: at most {limit} µs of the {side}", highest("drain", f"{side}_cpu_us"), limit, "µs")
        for side, limit in (("worker", 18), ("server", 20))
    ),
    at_least(3.5, "add many: at least 3.5 times the best other on Redis", _best("bulk_per_s")),
    at_least(0.95, "jobs of 50 ms: at least 0.95 of the ideal", highest("fifty", "fifty_of_ideal")),
    Goal(f"idle, from add to handler: p50 at most that of {NATS}", beside(NATS, "idle", "idle_p50_ms"), 1),
)
_SPARK = (
    at_least(
        0.8,
        "bulk add with Spark: at least 0.8 of a plain process with 1,000 items a call",
        beside("ceiling", "bulk_add", "add"),
    ),
    at_least(
        2,
        "bulk add with Spark: at least twice foreachPartition with a pipeline of redis-py",
        beside("bare", "bulk_add", "add"),
    ),
    Goal(
        "load, snapshot, drain, process: a row of the largest table at most 1.5 times that of the smallest",
        worst(
            *(
                growth("growth", what, "rows", "us_per_item")
                for what in ("add", "snapshot", "drain", "process")
            )
        ),
        1.5,
    ),
)


def _requests(endpoint: str) -> Measure:
    return highest("service", "requests", endpoint=endpoint, connections=50)


_SERVICE = (
    at_least(
        0.5,
        "requests that add a task, on 50 connections: at least half of those without a queue",
        ratio(_requests("adds a task"), _requests("no queue")),
    ),
)

_FANNED = "fan-out and join"


def _child(cost: str, children: int) -> Measure:
    return highest("flows", _FANNED, cost=cost, children=children)


def _stage(cost: str) -> Measure:
    """Divide the cost of a stage by that of a task which adds the next one."""
    of = partial(highest, "flows", "jobs that do nothing", cost=cost)
    return ratio(of(kind="stages of chains"), of(kind="tasks that add the next"))


_FLOWS = (
    *(
        at_least(
            limit,
            f"chains: at least {limit} times the hand-overs/s of {who}",
            beside(who, "flows", "hand-overs of chains"),
            margin=1.5,
        )
        for who, limit in (("celery", 5), ("bullmq", 1))
    ),
    *(
        at_least(
            1.3,
            f"groups of {children:,} and their joins: at least 1.3 times the stages/s of bullmq",
            beside("bullmq", "flows", "children and their joins", children=children),
        )
        for children in (10, 1_000)
    ),
    Goal(
        "from the last child of 100 open groups to the next stage: at most the time of bullmq",
        beside("bullmq", "flows", "last child to next stage, many groups at once"),
        1,
    ),
    Goal(
        "a fan-out of 10,000 and its join, server: at most 6 times the CPU per child of a no-op task",
        ratio(
            _child("server_cpu_us_per_item", 10_000),
            highest("flows", "jobs that do nothing", cost="server_cpu_us_per_item", kind="tasks"),
        ),
        6,
    ),
    *(
        Goal(
            f"a fan-out of 10,000 and its join, {side}: at most 1.2 times the µs per child of 10",
            ratio(_child(cost, 10_000), _child(cost, 10)),
            1.2,
        )
        for side, cost in (("time", "us_per_item"), ("server µs", "script_us_per_item"))
    ),
    Goal(
        "a fan-out of 10,000 and its join: no script call over 5 ms",
        highest("flows", "longest script call"),
        5,
        "ms",
    ),
    *(
        Goal(f"a stage of a chain, {side}: at most 3 times a task that adds the next one", _stage(cost), 3)
        for side, cost in (("client", "client_cpu_us_per_item"), ("server", "server_cpu_us_per_item"))
    ),
)


def _of_loads(pick: Callable[[list[float]], float], cost: str = "") -> Measure:
    """Take the lowest or the highest figure of all simulated loads."""

    def measure(rows: Sequence[Row]) -> float | None:
        its = [row for row in rows if row.scenario == "autoscale" and row.unit.startswith("%")]
        ours = [row.more[cost] if cost else row.value for row in its if row.who == "leasequeue"]
        return pick(ours) if ours else None

    return measure


_AUTOSCALE = (
    Goal(
        "on every simulated load: at least 99 % of the items begin within the target",
        _of_loads(min),
        99,
        "%",
        at_least=True,
        margin=1.01,
    ),
    Goal(
        "on every simulated load: at most 1.2 times the fewest workers by hindsight",
        _of_loads(max, "x_fewest"),
        1.2,
        margin=1.25,
    ),
    Goal(
        "on every simulated load: at most 60 requests per hour",
        _of_loads(max, "requests_per_hour"),
        60,
        "requests/h",
        margin=1,
    ),
)

#: Of `make bench-fleet`, which only prints its table.
SATURATED = Goal(
    "a job of a backlog, 100 workers: at most 1.8 times the server's µs of one", lambda _: None, 1.8
)

GOALS = {
    "queue": _QUEUE,
    "worker": _WORKER,
    "start": _START,
    "kills": _KILLS,
    "rivals": _RIVALS,
    "spark": _SPARK,
    "core": _CORE,
    "tasks": _TASKS,
    "telemetry": _TELEMETRY,
    "extras": (),
    "outbox": [],
    "service": _SERVICE,
    "flows": _FLOWS,
    "autoscale": _AUTOSCALE,
}
