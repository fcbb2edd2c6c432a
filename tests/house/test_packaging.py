"""What users install: the wheel, its files and its dependencies.

`make test` looks into the wheel and installs it without a network; `make test-long` installs it as users do.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING, Any

import pytest

from docs.registry import RegistryReadme
from leasequeue.wire.scripts import LINES, SCRIPTS
from tests.house.environment import PRINT_SCRIPTS, Environment, new_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


#: The extras for users.
USERS = (
    "embedded",
    "cli",
    "payloads",
    "schedules",
    "fastapi",
    "dashboard",
    "telemetry",
    "prometheus",
    "spark",
    "kubernetes",
    "outbox",
    "testing",
)
#: Imported without a requirement: redis[hiredis], lightkube, pyspark, jinja2 and fastapi bring them. The
#: semantic conventions share the namespace `opentelemetry` with the API.
BROUGHT = {
    "hiredis",
    "httpx2",
    "lightkube-models",
    "markupsafe",
    "opentelemetry-semantic-conventions",
    "py4j",
    "pydantic",
    "sqlalchemy",  # who passes a session of it has it
    "typing_extensions",  # type checkers know it without it
}


@pytest.fixture(scope="module")
def sdist(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(root, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel_of_checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(root, "wheel", tmp_path_factory.mktemp("direct"))


@pytest.fixture(scope="module")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(sdist)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return new_environment(root, tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def installed(environment: Environment, wheel_of_sdist: Path) -> Environment:
    environment.run("python", "-m", "pip", "install", "--quiet", f"{wheel_of_sdist}[cli,embedded]")
    return environment


@pytest.fixture(scope="module")
def scripts(root: Path) -> set[str]:
    names = {path.stem for path in (root / "lua").rglob("*.lua") if path.parent.name != "lib"}
    assert names
    return names


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_every_script(
    root: Path, house_files: list[Path], wheel_of_checkout: Path
) -> None:
    source = root / "src"
    committed = {str(path.relative_to(source)) for path in house_files if path.is_relative_to(source)}
    composed = {f"leasequeue/wire/{name}" for name in (SCRIPTS, LINES)}
    assert {name for name in contents(wheel_of_checkout) if ".dist-info/" not in name} == committed | composed


@pytest.mark.slow
def test_the_wheel_installs_without_a_network_and_finds_its_scripts(
    wheel_of_checkout: Path, tmp_path: Path, scripts: set[str]
) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        "installed",
    ]
    subprocess.run([*pip, str(wheel_of_checkout)], cwd=tmp_path, check=True, capture_output=True)
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRINT_SCRIPTS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert {*found.stdout.split()} == scripts


def test_the_readme_on_a_registry_links_to_the_tag_or_not_at_all(root: Path) -> None:
    readme = (root / "README.md").read_text()
    blocks = re.compile("^```.*?^```$", re.DOTALL | re.MULTILINE)

    def shown(**urls: str) -> str:
        metadata: dict[str, Any] = {"version": "1.2", "urls": urls}
        RegistryReadme(str(root), {}).update(metadata)
        return str(metadata["readme"]["text"])

    address = "https://example.org/leasequeue"
    linked = shown(Repository=f"{address}/")
    assert "](SECURITY.md)" in readme
    assert f"]({address}/blob/v1.2/SECURITY.md)" in linked
    assert f"]({address}/raw/v1.2/docs/pages/images/dashboard-light.png)" in linked
    assert re.sub(rf"{address}/(?:blob|raw)/v1.2/", "", linked) == readme
    plain = shown()
    assert blocks.findall(plain) == blocks.findall(readme) != []
    assert not re.findall(r"\]\((?!\w+:)", blocks.sub("", plain))


@pytest.mark.seed("RWQ-B18")
def test_each_dependency_is_imported_and_each_import_is_declared(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    packages = packages_distributions()
    imported = {
        name.lower()
        for module in imports_of(root / "src") - set(sys.stdlib_module_names)
        for name in packages.get(module, [module])
    }
    assert names_of(project["dependencies"]) <= imported
    users = [*project["dependencies"], *(one for extra in USERS for one in extras[extra])]
    assert imported - {"leasequeue"} - names_of(users) == BROUGHT


@pytest.mark.long
def test_both_wheels_hold_the_same_files(wheel_of_checkout: Path, wheel_of_sdist: Path) -> None:
    assert contents(wheel_of_checkout) == contents(wheel_of_sdist)


@pytest.mark.long
def test_the_installed_wheel_finds_its_scripts(installed: Environment, scripts: set[str]) -> None:
    where = installed.run("python", "-c", "import leasequeue; print(leasequeue.__file__)")
    assert where.startswith(str(installed.bin.parent))
    assert installed.scripts_found() == scripts


@pytest.mark.long
def test_a_packed_wheel_finds_its_scripts(
    installed: Environment, wheel_of_sdist: Path, scripts: set[str]
) -> None:
    # Spark's --py-files puts the wheel on the path of the executors.
    code = "import sys; sys.path.insert(0, sys.argv[1]); import leasequeue; "
    code += f"print(leasequeue.__file__); {PRINT_SCRIPTS}"
    file, *names = installed.run("python", "-c", code, wheel_of_sdist).split()
    assert file.startswith(str(wheel_of_sdist))
    assert {*names} == scripts


@pytest.mark.long
def test_the_installed_wheel_runs_the_demo(installed: Environment) -> None:
    folder = installed.elsewhere / "letters"
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / f"{name}.txt").write_text(f"This is {name}.\n" * 10)
    assert installed.run("leasequeue", "demo", folder)


@pytest.mark.long
def test_an_editable_install_finds_the_scripts_of_the_checkout(
    installed: Environment, root: Path, wheel_of_sdist: Path, scripts: set[str]
) -> None:
    install = ["-m", "pip", "install", "--quiet", "--no-deps"]
    installed.run("python", *install, "--editable", root)
    try:
        where = installed.run("python", "-c", "import leasequeue; print(leasequeue.__file__)")
        assert where.startswith(str(root / "src"))
        assert installed.scripts_found() == scripts
    finally:
        installed.run("python", *install, "--force-reinstall", wheel_of_sdist)


def build(root: Path, target: str, folder: Path) -> Path:
    """Run the build backend in the release that requirements.lock names."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def contents(wheel: Path) -> dict[str, int]:
    """Return the files of a wheel and their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def names_of(requirements: list[str]) -> set[str]:
    """Return the names of distributions, without extras, versions and markers."""
    return {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}


def imports_of(source: Path) -> set[str]:
    """Return the top-level modules that the code imports, at the top or in functions, also for types only."""
    return {module for path in source.rglob("*.py") for module in _imports(ast.parse(path.read_text()))}


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_texts_name_extras_that_there_are(root: Path) -> None:
    texts = "".join(path.read_text() for path in (root / "src").rglob("*.py"))
    named = {*re.findall(r'ExtraMissing\("[^"]*", "(\w+)"\)', texts)}
    assert {"spark", "schedules", "telemetry", "prometheus", "fastapi", "kubernetes", "outbox"} <= named
    assert named | {*re.findall(r"pip install .leasequeue\[(\w+)\]", texts)} <= {*USERS}
    assert "./leasequeue[" not in texts
