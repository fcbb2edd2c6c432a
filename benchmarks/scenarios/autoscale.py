"""The autoscaler on simulated loads, beside other rules and the fewest workers by hindsight.

No server is used and no time is measured: the clock is moved. The same loads give the same figures on any
machine. `tests/autoscale/simulation/` has the loads, the other rules and what hindsight is.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measure import Row
from tests.autoscale.simulation.judge import HINDSIGHT, INT32, SEED, SETS, compare

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from tests.autoscale.simulation.judge import Verdict

#: Of these loads the workers over time are kept, at so many moments.
DRAWN, MOMENTS = ("unannounced jump", "bursts", "a day", "feeding queues"), 240
WITHIN, READY = "% begun within the target", "workers ready"


async def autoscale(bench: Bench) -> list[Row]:
    """Simulate each load under each rule: what was kept, with how many workers, in how many requests.

    Two sets: the loads on which the rule was tuned, and others that were held out.
    """
    loads = [(which, name) for which, its in SETS.items() for name in its]
    with ProcessPoolExecutor() as processes:
        rows = processes.map(partial(_rows, short=bench.quick), loads)
        return [row for its in rows for row in its]


def _rows(load: tuple[str, str], *, short: bool) -> list[Row]:
    which, name = load
    verdicts = compare(SETS[which][name](short=short))
    rows = [_row(which, name, one) for one in verdicts if one.rule != INT32 or _differs(verdicts)]
    if name in DRAWN:
        rows += [_series(name, one) for one in verdicts if one.rule != INT32]
    return rows


def _differs(verdicts: list[Verdict]) -> bool:
    """Whether 32 bits make a difference."""
    int32, whole = (one.outcome for one in verdicts if one.rule in (INT32, SEED))
    return int32.worker_seconds != whole.worker_seconds


def _row(which: str, load: str, one: Verdict) -> Row:
    outcome = one.outcome
    share = 100 * outcome.within()
    more = {
        "x_fewest": one.ratio,
        "requests_per_hour": outcome.requests_per_hour(),
        "longest_s": outcome.longest(),
        "most_workers": float(outcome.ready.max()),
    }
    return Row(
        what=load,
        who=one.rule,
        setting={"set": which.replace("_", " ")},
        unit=WITHIN,
        value=share,
        low=100 * outcome.worst_job(),
        high=share,
        # By hindsight no requests are made, as all is known.
        more={
            key: value for key, value in more.items() if one.rule != HINDSIGHT or key != "requests_per_hour"
        },
    )


def _series(load: str, one: Verdict) -> Row:
    outcome = one.outcome
    moments = np.linspace(0, outcome.load.end, MOMENTS)
    places = np.searchsorted(outcome.at, moments, side="right") - 1
    ready = np.where(places < 0, 0, outcome.ready[np.maximum(places, 0)])
    return Row(
        what=f"{READY}, {load}",
        who=one.rule,
        setting={"hours": f"{outcome.load.end / 3600:g}"},
        unit="workers",
        value=float(np.median(ready)),
        low=float(ready.min()),
        high=float(ready.max()),
        samples=ready.tolist(),
    )
