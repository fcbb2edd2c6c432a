"""The command line `leasehold`. Needs the extra `cli`."""

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
        sys.stderr.write('leasehold: the command line needs an extra: pip install "leasehold[cli]"\n')
        sys.exit(2)
    app(prog_name="leasehold")
