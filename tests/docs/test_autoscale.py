"""The pages of the autoscaler: every key with its default, files that load, and a first run that works."""

from __future__ import annotations

import asyncio
import re
import tomllib
from typing import TYPE_CHECKING

import msgspec
import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.autoscale import config, load_config
from tests.cli.program import started
from tests.docs.pages import DOCS, REFERENCE, blocks, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.conftest import MakeServer

HOW_TO = DOCS / "how-to" / "autoscale.md"
PAGE = REFERENCE / "autoscale.md"

_ROW = re.compile(r"^\| `(\w+)` \|(.*?)\| ", re.MULTILINE)

#: The tables of the page, by what the head of the first column says, and the tables of a file.
TABLES: Mapping[str, type[msgspec.Struct]] = {
    "key": config.FileTable,
    "key of `[jobs.NAME]`": config.JobTable,
    "key of `[deployments.NAME]`": config.DeploymentTable,
    "key of `[[deployments.NAME.tiers]]`": config.TierTable,
    **{f"key of `{name}`": found for name, found in config.BACKENDS.items()},
    "key of `[http]`": config.HttpTable,
}


@pytest.mark.parametrize("head", TABLES)
def test_the_page_lists_each_key_with_its_default(head: str) -> None:
    _, _, rest = PAGE.read_text().partition(f"| {head} | default | |\n")
    listed = dict(_ROW.findall(rest.split("\n\n")[0]))
    fields = {one.name: one for one in msgspec.structs.fields(TABLES[head])}
    assert {*listed} == {*fields}
    for name, one in fields.items():
        said = listed[name].strip()
        if said == "required":
            assert one.required, name
        elif said:
            value = tomllib.loads(f"value = {said.strip('`')}")["value"]
            default = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
            assert msgspec.convert(value, one.type, dec_hook=config.custom) == default, name
        else:
            assert one.default in (None, ""), name


@pytest.mark.parametrize("page", [HOW_TO, HOW_TO.with_name("autoscale-kubernetes.md"), PAGE], ids=name_of)
def test_the_files_on_the_pages_can_be_used(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    shown = [block for block in blocks(page) if block.language == "toml"]
    assert shown
    for block in shown:
        path = tmp_path / "autoscale.toml"
        path.write_text(block.code)
        assert load_config(path).deployments, f"{name_of(page)}:{block.line}"


@pytest.mark.slow
async def test_the_first_run_of_the_guide_works(make_server: MakeServer, tmp_path: Path) -> None:
    server = await make_server()
    written = {block.title: block.code for block in blocks(HOW_TO) if block.title}
    # Two workers and twenty items show the same as eight and two thousand, in less time.
    for name, code in written.items():
        text = code.replace("localhost:6379", f"127.0.0.1:{server.port}")
        text = text.replace('every = "2s"', 'every = "200ms"').replace("max_units = 8", "max_units = 2")
        # As in a terminal, which the autoscaler of the test has not.
        text = text.replace("processes = {", 'processes = { on_exit = "stop",')
        (tmp_path / str(name)).write_text(text)
    environment = {"LEASEQUEUE_URL": server.url}
    async with (
        AsyncWorkQueue.from_url(server.url, "resize") as queue,
        started(
            "autoscale",
            "autoscale.toml",
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
            environment=environment,
        ) as autoscaler,
    ):
        try:
            await queue.add_items([Item(str(number)) for number in range(20)])
            counts = await queue.counts()
            async with asyncio.timeout(120):
                while counts.waiting or counts.leased:
                    await asyncio.sleep(0.1)
                    counts = await queue.counts()
            assert not counts.dead
        finally:
            autoscaler.terminate()
            out, _ = await autoscaler.communicate()
        assert autoscaler.returncode == 0, out.decode()
        assert b"asked resize/default for " in out
