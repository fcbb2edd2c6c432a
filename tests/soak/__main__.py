"""The soak as a command: `python -m tests.soak [MINUTES [KIND [SEED]]]`; `make soak` runs it."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests import servers
from tests.soak.run import Setting, soak

if TYPE_CHECKING:
    from tests.soak.run import Verdict

#: Where a soak leaves its histories and logs.
FOLDER = Path("build/soak")  # with a folder for each server and kind
#: How many problems are printed; all are in the folder.
SHOWN = 30


def main(minutes: str = "5", kind: str = "plain", seed: str = "") -> int:
    """Run the soak and print its verdict; return 1 if anything was wrong."""
    seed = seed or secrets.token_hex(3)
    setting = Setting(servers.wanted(), kind)
    folder = FOLDER / f"{setting.server}-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    show(
        f"Soaking {setting.server}, {kind}, for {minutes} minutes, seed {seed}; the histories go to {folder}/"
    )
    verdict = asyncio.run(soak(float(minutes) * 60, seed, folder, setting))
    for line in report(verdict):
        show(line)
    problems = [*verdict.wrong, *(str(violation) for violation in verdict.violations)]
    (folder / "problems.txt").write_text("".join(f"{problem}\n" for problem in problems))
    show(f"{len(problems)} problems" if problems else "No problems")
    for problem in problems[:SHOWN]:
        show(f"  {problem}")
    if problems:
        show(f"Again: make soak SERVER={setting.server} MINUTES={minutes} KIND={kind} SEED={seed}")
    return int(not verdict.right)


def report(verdict: Verdict) -> list[str]:
    """Return what happened, as lines."""
    lines = ["Faults and processes:"]
    lines += [f"  {count:>9,}  {what}" for what, count in sorted(verdict.counts.items())]
    lines.append("Events in the histories:")
    lines += [f"  {count:>9,}  {what}" for what, count in sorted(verdict.events.items())]
    for what, growth in verdict.memory.items():
        lines.append(
            f"Memory of the {what}: {growth.level / 1e6:.1f} MB, {growth.per_minute / 1e3:+.0f} kB a minute"
        )
    return lines


def show(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
