"""The command line: `leasehold serve` and its siblings. Needs the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the console script `leasehold` is this function.

    Raises:
        SystemExit: Always, with the exit code: 2 if the extra `cli` is not installed.
    """
    try:
        from leasehold.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in {"rich", "typer"}:
            raise
        sys.exit(_say('the command line needs its extra: pip install "leasehold[cli]"'))
    app(prog_name="leasehold")


def _say(problem: str) -> int:
    sys.stderr.write(f"leasehold: {problem}\n")
    return 2
