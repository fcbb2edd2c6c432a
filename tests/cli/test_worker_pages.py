"""The program for the command line and the manifest that the pages on workers show."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]  # comes with mkdocs, without types

from leasequeue.worker.signals import LAST_SECONDS
from tests.docs.pages import DOCS, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.program import Leasequeue

HOW_TO = DOCS / "how-to"


def titled(page: Path, title: str) -> str:
    """Return the block of a page with this title."""
    [found] = [block.code for block in blocks(page) if block.title == title]
    return found


def test_the_program_on_the_page_can_run(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "app.py").write_text(titled(HOW_TO / "worker.md", "app.py"))
    program = (sys.executable, "-P", "-m", "leasequeue.cli", "worker", "app:worker", "--check")
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "REDIS_URL": redis_url}
    printed = subprocess.check_output(program, cwd=tmp_path, env=environment, text=True)
    assert re.search(r"^letters +send +loop", printed, re.MULTILINE)
    assert "50 runs at once, grace 30 s" in printed


def test_the_manifest_gives_a_worker_enough_time_to_stop() -> None:
    manifest: Any = yaml.safe_load(titled(HOW_TO / "shutdown.md", "worker.yaml"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "Deployment")
    pod = manifest["spec"]["template"]
    assert manifest["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    assert container["command"][:2] == ["leasequeue", "worker"]
    arguments = container["args"]
    assert all(isinstance(argument, str) for argument in arguments)
    grace = float(arguments[arguments.index("--grace") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= grace + LAST_SECONDS + 5


async def test_the_pages_name_only_options_that_exist(leasequeue: Leasequeue) -> None:
    known = set(re.findall(r"--[a-z-]+", (await leasequeue("worker", "--help")).out))
    for name in ("shutdown.md", "worker.md"):
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (HOW_TO / name).read_text())) <= known
