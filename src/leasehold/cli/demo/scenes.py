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


def hand_out_orders(hands: Sequence[Hand], items: int) -> None:
    """Let all workers work, but so that there is an item left for each of the first two to hold.

    These get a small share and are then to hold an item. The others get what is left but for two items, and
    more when both hold one (`let_go_on`). So it needs no luck, however few items there are: of a single one,
    the second worker is given what the first was killed over.
    """
    victims, others = hands[:2], hands[2:]
    before = items // 20
    for victim in victims:
        victim.order(f"work {before}", "hold")
    share = max(0, items - 2 - 2 * before) // len(others)
    for other in others:
        other.order(f"work {share}")


async def let_go_on(hands: Sequence[Hand], record: Record) -> None:
    """When both victims hold an item, let the others work without end."""
    for victim in hands[:2]:
        await _held_by(victim, record)
    for other in hands[2:]:
        other.order("work")


async def kill_one(hand: Hand, record: Record, say: Say) -> float:
    """Kill a worker with SIGKILL while it holds an item.

    Returns:
        Seconds from the end of its lease until another worker was given the item, by the server's clock.
    """
    held = await _held_by(hand, record)
    await hand.kill()
    say(f"worker {hand.number} was killed (SIGKILL) while it worked on {shown(held.id)}")
    return await _taken_over(held, record, say)


async def stop_one(hand: Hand, record: Record, say: Say) -> float:
    """Stop a worker with SIGSTOP while it holds an item, and let it go on when another one has finished that.

    It then writes its line, too late, and calls `complete`, in vain.

    Returns:
        As `kill_one`.
    """
    held = await _held_by(hand, record)
    hand.signal(signal.SIGSTOP)
    say(f"worker {hand.number} was stopped (SIGSTOP) while it worked on {shown(held.id)}")
    recovery = await _taken_over(held, record, say)
    await record.first(lambda event: event.counted and event.id == held.id)
    hand.signal(signal.SIGCONT)
    hand.order("go", "work")
    late = await record.first(lambda event: event.kind == "answered" and event.token == held.token)
    verdict = "counted, and must not" if late.counted else "was refused"
    say(f"worker {hand.number} went on (SIGCONT): its late completion {verdict}")
    return recovery


async def _held_by(hand: Hand, record: Record) -> Event:
    return await record.first(lambda event: event.holds and event.worker == hand.number)


async def _taken_over(held: Event, record: Record, say: Say) -> float:
    heir = await record.first(
        lambda event: event.kind == "leased" and event.id == held.id and event.token > held.token
    )
    seconds = max(0.0, heir.given - held.deadline)
    say(f"worker {heir.worker} got {shown(held.id)}, {seconds * 1000:.0f} ms after that lease had ended")
    return round(seconds, 3)
