"""What the demo says at its end."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.cli.demo.files import shown

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came out. `--json` prints these, and `ok`.

    Attributes:
        folder: Where the files are.
        output: Where the lines are.
        items: How many files there were.
        bytes: How much was read.
        unreadable: How many files could not be read; their lines say why.
        completed_once: Items of which exactly one `complete` answered True.
        delivered_again: Deliveries of an item that had been delivered before.
        late_refused: Runs that came too late: the server refused to renew or to complete.
        written_again: Lines that were written for an item that has another one; merging has dropped them.
        left: Items that are still in the queue.
        recovery_seconds: From the end of the lease of the worker that was killed, and of the one that was
            stopped, until another worker had the item; None if that did not come to pass.
        workers: How many processes.
        lease_seconds: How long they leased an item.
        seconds: How long the work took, the accidents included.
        items_per_second: Items by that.
        missing, doubled, wrong: Items that are not as they should be in the output.
        changed: Items that differ because somebody changed the file meanwhile; no fault of ours.
    """

    folder: str
    output: str
    items: int
    bytes: int
    unreadable: int
    completed_once: int
    delivered_again: int
    late_refused: int
    written_again: int
    left: int
    recovery_seconds: dict[str, float | None]
    workers: int
    lease_seconds: float
    seconds: float
    items_per_second: float
    missing: list[str]
    doubled: list[str]
    wrong: list[str]
    changed: list[str]

    @property
    def ok(self) -> bool:
        """Whether all is as promised."""
        return not self.faults()

    def faults(self) -> list[str]:
        """Say what is not as promised, a line each."""
        faults = [
            f"{len(ids)} {what}: {', '.join(map(shown, ids[:_SHOWN]))}{', …' if len(ids) > _SHOWN else ''}"
            for what in ("missing", "doubled", "wrong")
            if (ids := getattr(self, what))
        ]
        if self.completed_once != self.items:
            faults.append(f"{self.items - self.completed_once} not completed exactly once")
        if self.left:
            faults.append(f"{self.left} left in the queue")
        if self.items and None in self.recovery_seconds.values():
            faults.append("an item that a worker had let fall was not taken up")
        if self.items and not self.late_refused:
            faults.append("the late outcome was not refused")
        return faults

    def lines(self) -> list[str]:
        """Lay the figures out for reading."""
        unreadable = f", {self.unreadable:,} of them unreadable" if self.unreadable else ""
        where = f"files, {self.bytes / 1e6:,.1f} MB{unreadable}, in {shown(self.folder)}"
        rows = [
            ("items", f"{self.items:,}", where),
            ("completed exactly once", f"{self.completed_once:,}", ""),
            ("delivered again", f"{self.delivered_again:,}", "since a lease had ended"),
            ("late outcomes refused", f"{self.late_refused:,}", ""),
            (
                "lines written again",
                f"{self.written_again:,}",
                "the one with the highest token is kept",
            ),
        ]
        for what, seconds in self.recovery_seconds.items():
            if seconds is not None:
                note = "from the end of the lease to the next free worker"
                rows.append((f"recovered from {what}", f"{seconds * 1000:,.0f} ms", note))
        speed = f"{self.workers} processes, {self.seconds:.1f} s"
        rows.append(
            ("items/s", f"{self.items_per_second:,.{0 if self.items_per_second > 10 else 1}f}", speed)
        )
        return [f"  {what:<26}{figure:>9}  {note}".rstrip() for what, figure, note in rows]

    def conclusion(self) -> list[str]:
        """Say whether all is well, and, if not, what is not."""
        if faults := self.faults():
            return ["Not as promised:", *(f"  {fault}" for fault in faults)]
        if not self.items:
            return ["There was no file to work on."]
        well = f"Checked: {shown(self.output)} has each file once, as computed anew without the queue."
        if self.changed:
            return [well, f"{len(self.changed):,} files were changed meanwhile and could not be checked."]
        return [well]
