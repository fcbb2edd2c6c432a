"""What goes wrong on purpose: one worker dies in mid-item, another one sleeps through its lease."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasehold.cli.demo.files import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.cli.demo.crew import Hand
    from leasehold.cli.demo.events import Event, Record

#: The demo needs one worker to kill, one to stop, and one that is left.
FEWEST_WORKERS = 3

#: Tells the audience.
Say = Callable[[str], None]


def holding(workers: int, items: int) -> list[str]:
    """For each worker, after how many items it holds one: the first two do, and are the victims."""
    return [str(items // 20)] * 2 + ["never"] * (workers - 2)


async def let_work(hands: Sequence[Hand], record: Record) -> None:
    """When both victims hold an item, let the others begin.

    So it needs no luck, however few items there are: of a single one, the second victim is given what the
    first was killed over.
    """
    for victim in hands[:2]:
        await _held_by(victim, record)
    for other in hands[2:]:
        other.go()


async def kill_one(hand: Hand, record: Record, say: Say) -> float:
    """Kill a worker with SIGKILL while it holds an item.

    Returns:
        Seconds from the end of its lease until another worker was given the item, by the server's clock.
    """
    held = await _held_by(hand, record)
    await _heard_all(hand, held, record)
    await hand.kill()
    say(f"worker {hand.number} was killed (SIGKILL) while it worked on {shown(held.id)}")
    return await _taken_over(held, record, say)


async def stop_one(hand: Hand, record: Record, say: Say) -> float:
    """Stop a worker with SIGSTOP while it holds an item, and let it go on when another one has finished that.

    It then writes its line, too late, and nobody wants its outcome any more.

    Returns:
        As `kill_one`.
    """
    held = await _held_by(hand, record)
    hand.signal(signal.SIGSTOP)
    say(f"worker {hand.number} was stopped (SIGSTOP) while it worked on {shown(held.id)}")
    recovery = await _taken_over(held, record, say)
    await record.first(lambda event: event.counted and event.id == held.id)
    hand.signal(signal.SIGCONT)
    hand.go()
    late = await _end_of(held.token, record)
    verdict = "counted, and must not" if late.counted else "was refused"
    say(f"worker {hand.number} went on (SIGCONT): its late outcome {verdict}")
    return recovery


async def _held_by(hand: Hand, record: Record) -> Event:
    return await record.first(lambda event: event.kind == "holds" and event.worker == hand.number)


async def _heard_all(hand: Hand, held: Event, record: Record) -> None:
    """Wait until a worker has told what became of all else that it has begun.

    Its completions travel while it goes on with the next item. Killed between the server's answer and its own
    word to us it would have done nothing wrong, but we could not count.
    """
    begun = [event.token for event in record.events if (event.worker, event.kind) == (hand.number, "leased")]
    for token in begun:
        if token != held.token:
            await _end_of(token, record)


async def _end_of(token: int, record: Record) -> Event:
    return await record.first(lambda event: event.over and event.token == token)


async def _taken_over(held: Event, record: Record, say: Say) -> float:
    heir = await record.first(
        lambda event: event.kind == "leased" and event.id == held.id and event.token > held.token
    )
    # While it was held, it may have been renewed.
    ended = max(event.deadline for event in record.events if event.token == held.token and event.answer)
    seconds = max(0.0, heir.given - ended)
    say(f"worker {heir.worker} got {shown(held.id)}, {seconds * 1000:.0f} ms after that lease had ended")
    return round(seconds, 3)
