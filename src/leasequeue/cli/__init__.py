"""The command line `leasequeue`. Needs the extra `cli`."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line; the console script `leasequeue` is this function.

    Raises:
        SystemExit: Always, with the exit code: 2 if the extra `cli` is not installed.
    """
    # Until the command is imported: what imports make stays, and searching it takes a quarter of the start.
    gc.disable()
    try:
        from leasequeue.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in {"rich", "typer"}:
            raise
        sys.stderr.write('leasequeue: the command line needs an extra: pip install "leasequeue[cli]"\n')
        sys.exit(2)

    app(prog_name="leasequeue")
