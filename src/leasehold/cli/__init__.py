"""The command line `leasehold`. Needs the extra `cli`."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line; the console script `leasehold` is this function.

    Raises:
        SystemExit: Always, with the exit code: 2 if the extra `cli` is not installed.
    """
    # Until the command is imported: what imports make stays, and searching it takes a quarter of the start.
    gc.disable()
    try:
        from leasehold.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in {"rich", "typer"}:
            raise
        sys.stderr.write('leasehold: the command line needs an extra: pip install "leasehold[cli]"\n')
        sys.exit(2)

    def run() -> None:
        app(prog_name="leasehold")

    if os.environ.get("_LEASEHOLD_COMPLETE") == "complete_bash":
        from leasehold.cli.completion import complete_in_bash

        complete_in_bash(run)
    else:
        run()
