"""Run a sample of the tests on some servers, and print the table of what was run where, in Markdown.

    python -m tests.servertable embedded redis7 redis6 binary:/path/to/redis-server

The names are those of tests/servers.py. All servers that a test starts are of that program: the nodes of a
cluster, Sentinels, and the server with TLS.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from leasequeue.embedded.program import inspect_program
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What is run in each column.
COLUMNS = {
    "alone": (
        "tests/queue/test_adding.py",
        "tests/queue/test_leasing.py",
        "tests/queue/test_results.py",
        "tests/queue/test_cancelling.py",
        "tests/queue/test_delivering.py",
        "tests/queue/test_schedules.py",
        "tests/plans/test_flow_runs.py",
        "tests/lua/test_lease_many.py",
    ),
    "cluster": ("tests/faults/test_cluster.py", "tests/plans/test_cluster.py"),
    "Sentinel": ("tests/faults/test_sentinel_frozen.py",),
    "TLS": ("tests/queue/test_tls.py",),
    "ACL": (
        "tests/queue/test_access_rules.py",
        "tests/worker/test_flow_access.py",
        "tests/cli/test_acl.py",
        "tests/cli/test_roles.py",
    ),
}
#: Only Valkey 9 moves slots so, and `make test-cluster` runs it.
_NEWEST = "tests/faults/test_cluster.py::test_a_queue_follows_a_slot_that_is_moved_at_one_moment"
#: What a server says that could encrypt if there were this certificate.
_HAS_TLS = "Failed to configure TLS"


def cell(server: str, column: str) -> str:
    """Run the sample of a column on a server; return how many tests have passed, and failed."""
    markers = "not long"
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "-m",
            markers,
            "--deselect",
            _NEWEST,
            *COLUMNS[column],
        ],
        env={**os.environ, "LEASEQUEUE_TEST_SERVER": server, "LEASEQUEUE_TEST_EVERYWHERE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(ran.stdout)
    counts = re.findall(r"(\d+) (passed|failed|errors?)", ran.stdout.splitlines()[-1])
    return ", ".join(number if what == "passed" else f"**{number} {what}**" for number, what in counts)


def has_tls(server: str) -> bool:
    """Return whether the server's program can encrypt."""
    words = [servers.program(server), "--port", "0", "--tls-port", "1", "--tls-cert-file", "/none"]
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    return _HAS_TLS in ran.stdout


def row(server: str) -> str:
    """Return the row of a server."""
    os.environ["LEASEQUEUE_TEST_SERVER"] = server
    version = inspect_program(servers.program(server), origin=server).version
    absent = set() if has_tls(server) else {"TLS"}
    if version.startswith("Redis 6"):
        absent |= {"cluster", "Sentinel"}  # the tests start them with options as Redis 7 reads them
    cells = ["not run" if one in absent else cell(server, one) for one in COLUMNS]
    return f"| {version} | {' | '.join(cells)} |"


def main(names: Sequence[str]) -> None:
    """Print the table, row by row."""
    sys.stdout.write(f"| server | {' | '.join(COLUMNS)} |\n{'|---' * (1 + len(COLUMNS))}|\n")
    for name in names:
        sys.stdout.write(f"{row(name)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
