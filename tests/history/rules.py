"""The rules of a correct history. Each takes time about proportional to the length of the history."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.history.events import STAGE_ENDS
from tests.history.index import HistoryIndex, Intervals, ItemHistory, ObservedLease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.history.events import FinalRun, FinalState, History
    from tests.history.index import Call, TokenIndex

    #: What a rule is given beside the history: the final states of queues, by name.
    Finals = Mapping[str, FinalState]
    #: What a rule yields: an item, what is wrong, and when it showed.
    Findings = Iterator[tuple[ItemHistory, str, int | None]]


class Violation(NamedTuple):
    """A rule that a history breaks."""

    #: The name of the rule, a key of `RULES`.
    rule: str
    #: The name of the queue.
    queue: str
    #: The id of the item.
    id: str
    #: What happened, as a sentence.
    detail: str
    #: When it showed, by `time.monotonic_ns()`; None: only in the final state.
    at: int | None = None

    def __str__(self) -> str:
        when = "in the final state" if self.at is None else f"at {self.at / 1e9:.6f}"
        return f"{self.rule}: item {self.id!r} of {self.queue!r}, {when}: {self.detail}"


def check(history: History, *finals: FinalState) -> list[Violation]:
    """Check a history against the guarantees of the queue and the worker.

    Calls without an answer, and leases that were not recorded because the process was killed, may or may not
    have happened: a history is wrong only if it is wrong either way. `RULES` names the rules.
    """
    index = HistoryIndex(history)
    states = {final.queue: final for final in finals}
    found = [
        Violation(name, item.queue, item.id, detail, at)
        for name, rule in RULES.items()
        for item, detail, at in rule(index, states)
    ]
    return sorted(found, key=lambda violation: math.inf if violation.at is None else violation.at)


#: How a run keeps what its stages have recorded.
_RECORDED = {"stage_done": "done", "stage_failed": "failed"}


def _lost(index: HistoryIndex, finals: Finals) -> Findings:
    """Find added items that are neither completed, dead nor unfinished, and dead letters that disappeared."""
    for item in index.items:
        final = finals.get(item.queue)
        if final is None:
            continue
        added = [call.called_at for call in item.adds() if call.applied]
        # After the last add, a lease must have ended the item.
        ended = not added or item.endings_by_lease().any_overlaps(added[-1], math.inf)
        # Also after the last add that found it there, as one does that is repeated.
        found = [call.called_at for call in item.calls_of("add") if call.found]
        ended = ended and (not found or any(call.answered_at >= found[-1] for call in item.endings()))
        if not ended and item.id not in final.unfinished:
            yield item, "was added, has not ended since, and is not in the queue", None
        died = [call for call in item.calls_of("die") if call.applied]
        if died and item.id not in final.dead:
            removed = [call for call in item.calls_of("requeue", "drop") if call.maybe_applied]
            if not any(call.answered_at > died[-1].called_at for call in removed):
                yield item, "became a dead letter, which disappeared without a requeue or drop", None


def _ended_twice(index: HistoryIndex, finals: Finals) -> Findings:
    """Find items that ended twice, or are unfinished after they ended, without an add in between.

    So a cancelled item is not completed.
    """
    for item in index.items:
        if item.calls_of(*STAGE_ENDS):
            continue  # the server adds it
        leased_at = item.leased_at()
        ended = sorted((call for call in item.endings() if call.applied), key=lambda call: call.token)
        if item.calls_of("cancel"):
            # It has no token. A call that ends an incarnation follows the end of the one before.
            ended.sort(key=lambda call: call.called_at)
        # For each ending: the latest time of its add, the time of the call, and the time of the answer.
        windows: list[tuple[float, int, int | None]] = [
            (leased_at.get(call.token, call.answered_at), call.called_at, int(call.answered_at))
            for call in ended
        ]
        final = finals.get(item.queue)
        if windows and final is not None and item.id in final.unfinished:
            windows.append((math.inf, 0, None))
        adds = item.adds()
        unused: list[float] = []
        at, since = 0, 0
        for until, called_at, answered_at in windows:
            while at < len(adds) and adds[at].called_at <= until:
                heapq.heappush(unused, adds[at].answered_at)
                at += 1
            while unused and unused[0] < since:
                heapq.heappop(unused)
            if unused:
                heapq.heappop(unused)
            elif answered_at is None:
                yield item, "is in the queue, but was not added again after it had ended", None
            else:
                yield item, "ended again without having been added in between", answered_at
            since = called_at


def _added_twice(index: HistoryIndex, _: Finals) -> Findings:
    """Find two successful adds of an item that did not end in between."""
    for item in index.items:
        endings = item.endings_by_lease()
        added = [call for call in item.adds() if call.applied]
        for earlier, later in pairwise(added):
            # If they were in flight together, the server may have had them in the other order.
            last = max(earlier.answered_at, later.answered_at)
            if not endings.any_overlaps(earlier.called_at, last):
                yield item, "was added again while it was unfinished", int(last)


def _tokens_increase(index: HistoryIndex, _: Finals) -> Findings:
    """Find leases whose token was issued twice, or is lower than one recorded before the call."""
    issued: set[tuple[str, int]] = set()
    for item in index.items:
        tokens = index.tokens.get(item.queue)
        for lease in item.leases:
            if (item.queue, lease.token) in issued:
                yield item, f"token {lease.token} was issued twice", lease.answered_at
            issued.add((item.queue, lease.token))
            highest = tokens.highest_by(lease.called_at) if tokens else 0
            if highest > lease.token:
                yield item, f"token {lease.token} was issued after token {highest}", lease.answered_at


def _run_after_completion(index: HistoryIndex, _: Finals) -> Findings:
    """Find runs that began after the completion of their item was acknowledged.

    The protocol allows one case: an earlier holder, whose lease has expired, completes the item while a later
    holder is about to begin.
    """
    for item in index.items:
        completed = sorted(
            (call for call in item.calls_of("complete", *STAGE_ENDS) if call.applied),
            key=lambda call: call.token,
        )
        if not completed:
            continue
        tokens = [call.token for call in completed]
        adds = Intervals(call.span for call in (*item.adds(), *_retries_of(item, index)))
        # For each completion, the earliest answer to it or to one with a higher token.
        first = list(accumulate((call.answered_at for call in reversed(completed)), min))[::-1]
        leases = {lease.token: lease for lease in item.leases}
        for begin in item.begins:
            token = begin.token or 0
            at = bisect_left(tokens, token)
            if at < len(completed) and first[at] < begin.at:
                yield item, f"a run with token {token} began after the item was completed", begin.at
            lease, before = leases.get(token), completed[at - 1] if at else None
            if (
                lease is not None
                and before is not None
                and lease.called_at > before.answered_at
                and not adds.any_overlaps(before.called_at, lease.answered_at)
            ):
                yield item, f"was leased with token {token} and run after it was completed", begin.at


def _former_holder(index: HistoryIndex, _: Finals) -> Findings:
    """Find renewals, reports, failures and releases that were accepted from a former holder."""
    for item in index.items:
        tokens = [lease.token for lease in item.leases]
        # For each lease, when it or the first later one was received.
        received = list(accumulate((lease.answered_at for lease in reversed(item.leases)), min))[::-1]
        for call in item.calls_of("renew", "progress", "retry", "die", "release"):
            at = bisect_left(tokens, call.token + 1)
            if call.applied and at < len(tokens) and received[at] < call.called_at:
                detail = f"{call.kind} was accepted with token {call.token} after token {tokens[at]} or later"
                yield item, detail, int(call.answered_at)


class _AttemptBounds:
    """Bounds of a lease's `attempt`, from what happened since the previous lease of the item."""

    def __init__(self, item: ItemHistory, tokens: TokenIndex) -> None:
        self._tokens = tokens
        self._may_have_ended = Intervals(call.span for call in item.endings())
        self._ended = Intervals(call.span for call in item.endings() if call.applied)
        self._adds = item.adds()
        self._released: dict[int, bool] = {}
        for call in item.calls_of("release"):
            if call.maybe_applied:
                self._released[call.token] = call.applied or self._released.get(call.token, False)

    def first(self, lease: ObservedLease) -> tuple[int, int]:
        """Return the minimum and the maximum for the first recorded lease of an item."""
        added_at = self._adds[0].called_at if self._adds else 0
        return 1, 1 + self._tokens.unrecorded(self._tokens.highest_by(added_at), lease.token)

    def after(self, before: ObservedLease, lease: ObservedLease) -> tuple[int, int]:
        """Return the minimum and the maximum for the lease that follows `before`."""
        unrecorded = self._tokens.unrecorded(before.token, lease.token)
        if self._ended.any_within(before.answered_at, lease.called_at):
            return 1, 1 + unrecorded
        released = self._released.get(before.token)
        minimum = before.attempt + (released is None)
        maximum = before.attempt + (released is not True) + unrecorded
        if self._may_have_ended.any_overlaps(before.called_at, lease.answered_at):
            return 1, maximum
        return minimum, maximum


def _attempt_bounds(item: ItemHistory, index: HistoryIndex) -> Iterator[tuple[ObservedLease, int, int]]:
    """Yield each lease of an item with the minimum and the maximum of its `attempt`."""
    if item.leases:
        bounds = _AttemptBounds(item, index.tokens[item.queue])
        yield item.leases[0], *bounds.first(item.leases[0])
        for before, lease in pairwise(item.leases):
            yield lease, *bounds.after(before, lease)


def _uncounted_attempt(index: HistoryIndex, _: Finals) -> Findings:
    """Find leases whose `attempt` is too low: each earlier lease counts unless it was released."""
    for item in index.items:
        for lease, minimum, _maximum in _attempt_bounds(item, index):
            if lease.attempt < minimum:
                detail = f"token {lease.token} is attempt {lease.attempt}, expected {minimum} or more"
                yield item, detail, lease.answered_at


def _counted_release(index: HistoryIndex, _: Finals) -> Findings:
    """Find leases whose `attempt` is too high: a released lease, as of an interrupted run, does not count."""
    for item in index.items:
        for lease, _minimum, maximum in _attempt_bounds(item, index):
            if lease.attempt > maximum:
                detail = f"token {lease.token} is attempt {lease.attempt}, expected {maximum} or less"
                yield item, detail, lease.answered_at


def _unreleased(index: HistoryIndex, _: Finals) -> Findings:
    """Find interrupted runs whose item the worker did not release before it exited, though it could."""
    for item in index.items:
        settled = {call.token for call in item.calls_of("release")}
        settled |= {call.token for call in item.calls_of("renew") if not call.maybe_applied}
        for end in item.ends:
            interrupted = end.outcome == "interrupted" and end.process in index.exited
            answered = index.last_unanswered.get(end.process, 0) < end.at
            if interrupted and answered and end.token not in settled:
                yield item, f"was not released after its run with token {end.token} was interrupted", end.at


def _stage_ended_twice(index: HistoryIndex, _: Finals) -> Findings:
    """Find stages that two calls have ended, without a retry of the run in between."""
    for item in index.items:
        ended = [call for call in item.calls_of(*STAGE_ENDS) if call.applied]
        if len(ended) > 1 + len(_retries_of(item, index)):
            yield item, f"was ended {len(ended)} times", int(ended[-1].answered_at)


def _run_lost(index: HistoryIndex, finals: Finals) -> Findings:
    """Find runs that were started and are gone, and open stages without an item."""
    unfinished = {one for final in finals.values() for one in final.unfinished}
    for item in index.items:
        final = finals.get(item.queue)
        if final is None or final.runs is None:
            continue
        started = any(call.applied for call in item.calls_of("start"))
        deleted = any(call.maybe_applied for call in item.calls_of("run_delete"))
        run = final.runs.get(item.id)
        if started and run is None and not deleted:
            yield item, "was started, and is gone", None
        for path, state in run.stages.items() if run else ():
            if state == "entered" and f"{item.id}/{path}" not in unfinished:
                yield item, f"waits for {path!r}, whose item does not exist", None


def _stage_unrecorded(index: HistoryIndex, finals: Finals) -> Findings:
    """Find stages whose run does not say what the server has accepted."""
    runs = _runs(finals)
    for item in index.items:
        run_id, _, path = item.id.partition("/")
        run = runs.get(run_id)
        if run is None or _retries_of(item, index):
            continue
        for kind in ("stage_done", "stage_failed"):
            accepted = [call for call in item.calls_of(kind) if call.applied]
            state = run.stages.get(path, "not entered")
            # One that another call had recorded before is only completed.
            others = [call for call in item.calls_of(*STAGE_ENDS) if call.kind != kind and call.maybe_applied]
            if accepted and not others and state not in {_RECORDED[kind], "cancelled"}:
                yield item, f"was accepted as {_RECORDED[kind]}, and is {state}", int(accepted[0].answered_at)


def _stage_early(index: HistoryIndex, finals: Finals) -> Findings:
    """Find stages that began before those that they wait for had ended, and children before their parents."""
    runs = _runs(finals)
    items = {item.id: item for item in index.items}
    for item in index.items:
        run_id, _, path = item.id.partition("/")
        run = runs.get(run_id)
        if run is None or not item.begins:
            continue
        parent = path.rpartition("/")[0]
        began = min(begin.at for begin in item.begins)
        for before in (parent,) if parent else run.waits_for.get(path, ()):
            other = items.get(f"{run_id}/{before}")
            if other is None or not other.leases or (not parent and run.stages.get(before) != "done"):
                continue  # it has ended in another way, or has no item
            ended = other.calls_of(*STAGE_ENDS)
            # The answer to one that fans out says only whether its item was completed.
            fanned = [call for call in ended if call.maybe_applied or call.kind == "stage_fanned"]
            if not any(call.called_at < began for call in fanned):
                yield item, f"began before {before!r} had ended", began


def _runs(finals: Finals) -> dict[str, FinalRun]:
    return {name: run for final in finals.values() for name, run in (final.runs or {}).items()}


def _retries_of(item: ItemHistory, index: HistoryIndex) -> list[Call]:
    """Return the calls that may have opened a stage again, or started its run again after it was deleted."""
    run = index.runs.get(item.id.partition("/")[0])
    if run is None or not item.calls_of(*STAGE_ENDS):
        return []
    starts = [call for call in run.calls_of("start") if call.maybe_applied]
    return [*(call for call in run.calls_of("run_retry") if call.maybe_applied), *starts[1:]]


def check_limits(
    history: History,
    limits: Mapping[str, int],
    limits_on: Callable[[str, str], list[str]],
    lease_seconds: float,
) -> tuple[Counter[str], list[Violation]]:
    """Check limits on how many items are leased at once; return the peak of each, and where it was exceeded.

    Args:
        history: Without leases that a fail-over may have undone.
        limits: By their names.
        limits_on: Returns the names of the limits on an item of a queue.
        lease_seconds: How long leases and renewals last.
    """
    steps: list[tuple[int, int, str, ItemHistory]] = []
    for item in HistoryIndex(history).items:
        names = limits_on(item.queue, item.id)
        for since, until in _held(item, int(lease_seconds * 1e9)):
            steps += [(at, step, name, item) for name in names for at, step in ((since, 1), (until, -1))]
    leased, peaks, found = Counter[str](), Counter[str](), []
    for at, step, name, item in sorted(steps, key=lambda one: one[:2]):
        leased[name] += step
        peaks[name] = max(peaks[name], leased[name])
        if step > 0 and leased[name] > limits[name]:
            detail = f"is leased number {leased[name]} at once of {name}, at most {limits[name]}"
            found.append(Violation("limits are kept", item.queue, item.id, detail, at))
    return peaks, found


def _held(item: ItemHistory, lease_ns: int) -> Iterator[tuple[int, int]]:
    """Yield for each lease from when until when it was certainly held."""
    calls = item.calls_of("renew", "complete", "retry", "die", "release")
    for lease, later in zip(item.leases, [*item.leases[1:], None], strict=False):
        until, expires = lease.answered_at, lease.called_at + lease_ns
        for call in calls:
            if call.token != lease.token:
                continue
            is_lost = call.answered_at > expires or (later is not None and later.called_at < call.called_at)
            if is_lost or not call.applied:
                break
            until = max(call.called_at, until)
            if call.kind != "renew":
                break
            expires = call.called_at + lease_ns
        if until > lease.answered_at:
            yield lease.answered_at, until


#: The rules by name.
RULES: Mapping[str, Callable[[HistoryIndex, Finals], Findings]] = {
    "no item is lost": _lost,
    "an incarnation ends once": _ended_twice,
    "no unfinished item is added again": _added_twice,
    "tokens increase": _tokens_increase,
    "no run begins after completion": _run_after_completion,
    "only the current holder is accepted": _former_holder,
    "every attempt is counted": _uncounted_attempt,
    "a release is not an attempt": _counted_release,
    "interrupted items are released": _unreleased,
    "a stage ends once": _stage_ended_twice,
    "no run is lost": _run_lost,
    "the end of a stage is recorded": _stage_unrecorded,
    "no stage begins early": _stage_early,
}
