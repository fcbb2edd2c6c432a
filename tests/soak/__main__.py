"""The soak as a command: `python -m tests.soak [MINUTES [SEED]]`; `make soak` runs it."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.play import soak

if TYPE_CHECKING:
    from tests.soak.play import Verdict

#: What a soak leaves to be looked at.
FOLDER = Path("build/soak")
#: So many of what went wrong are shown; all are in the folder.
SHOWN = 30


def main(minutes: str = "5", seed: str = "") -> int:
    """Soak, and say what came out; 1 if anything was wrong."""
    seed = seed or secrets.token_hex(3)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    say(f"Soaking for {minutes} minutes, seed {seed}; the histories go to {FOLDER}/")
    verdict = asyncio.run(soak(float(minutes) * 60, seed, FOLDER))
    for line in report(verdict):
        say(line)
    problems = [*verdict.wrong, *(str(violation) for violation in verdict.violations)]
    (FOLDER / "problems.txt").write_text("".join(f"{problem}\n" for problem in problems))
    say(f"{len(problems)} problems" if problems else "Nothing was wrong")
    for problem in problems[:SHOWN]:
        say(f"  {problem}")
    if problems:
        say(f"Again: make soak MINUTES={minutes} SEED={seed}")
    return int(not verdict.right)


def report(verdict: Verdict) -> list[str]:
    """What happened, as lines."""
    lines = ["What was done:"]
    lines += [f"  {count:>9,}  {what}" for what, count in sorted(verdict.did.items())]
    lines.append("What was written down:")
    lines += [f"  {count:>9,}  {what}" for what, count in sorted(verdict.events.items())]
    for what, growth in verdict.memory.items():
        lines.append(
            f"Memory of the {what}: {growth.level / 1e6:.1f} MB, {growth.per_minute / 1e3:+.0f} kB a minute"
        )
    return lines


def say(line: str) -> None:
    """Show a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
