"""What the pages on workers show beside Python that is run: a program for the command line, a manifest."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]  # comes with mkdocs, without types

from leasehold.worker.signals import LAST_SECONDS
from tests.docs.pages import DOCS, blocks

if TYPE_CHECKING:
    from pathlib import Path

HOW_TO = DOCS / "how-to"


def titled(page: Path, title: str) -> str:
    """The block of a page that has this title."""
    [found] = [block.code for block in blocks(page) if block.title == title]
    return found


def leasehold(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "leasehold.cli", *arguments],
        cwd=cwd,
        env={"COLUMNS": "200", "PYTHONPATH": ":".join(path for path in sys.path if path), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_program_of_the_page_can_run(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "app.py").write_text(titled(HOW_TO / "worker.md", "app.py"))
    printed = leasehold("worker", "app:worker", "--check", cwd=tmp_path, REDIS_URL=redis_url)
    assert re.search(r"^letters +send +loop", printed, re.MULTILINE)
    assert "50 runs at once, 30 s of grace" in printed


def test_the_manifest_leaves_a_worker_the_time_that_it_may_need() -> None:
    manifest: Any = yaml.safe_load(titled(HOW_TO / "shutdown.md", "worker.yaml"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "Deployment")
    pod = manifest["spec"]["template"]
    assert manifest["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    assert container["command"][:2] == ["leasehold", "worker"]
    arguments = container["args"]
    assert all(isinstance(argument, str) for argument in arguments)
    grace = float(arguments[arguments.index("--grace") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= grace + LAST_SECONDS + 5


def test_the_pages_name_no_option_that_there_is_not() -> None:
    known = set(re.findall(r"--[a-z-]+", leasehold("worker", "--help")))
    for name in ("shutdown.md", "worker.md"):
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (HOW_TO / name).read_text())) <= known
