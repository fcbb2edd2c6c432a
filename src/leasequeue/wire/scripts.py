"""The scripts as the server gets them: composed from `lua/` when the package is built, and loaded here.

`scripts.json` beside this module has their texts, and what the program must know of each. `lua/compose`
writes it. In a checkout, it is refused if a file of `lua/` has changed since.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue.states import EVENTS, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The texts and what the program knows of them; and from which line of `lua/` each of their lines is.
SCRIPTS, LINES = "scripts.json", "lines.json"
#: Composes the scripts of a checkout again.
COMMAND = "make scripts"
_LINE = re.compile(r"@?user_script: ?(\d+)(?:\.$)?")
#: Where Redis 7, Valkey and Redis 6.2 name the script. Valkey 9 does not name it.
_NAMED = re.compile(r"(?<=script: )(?:[0-9a-f]{40}, )?(?=on @user_script)|(?<=call to )f_[0-9a-f]{40}")


@dataclass(frozen=True)
class Script:
    """A composed script.

    Attributes:
        name: The file's name, without `.lua`.
        keys: The names of its keys, in order; the last is `none`.
        arguments: The names and kinds of its arguments, in order; the last may be of kind `rest`.
        sha: The SHA-1 of the body, in hex: its name on the server.
        calls: The scripts that it calls, directly or through others.
    """

    name: str
    keys: tuple[str, ...]
    arguments: dict[str, str]
    events: frozenset[EventKind]
    commands: frozenset[str]
    body: bytes
    sha: bytes
    calls: tuple[str, ...] = ()


@cache
def load() -> dict[str, Script]:
    """Read all scripts.

    Refuse them if a file that they are composed from has changed since.
    """
    found = read_json(SCRIPTS)
    _check_fresh(Path(__file__), found["digest"])
    return {
        name: Script(
            name,
            tuple(entry["keys"]),
            entry["arguments"],
            frozenset(EVENTS[event] for event in entry["events"]),
            frozenset(entry["commands"]),
            entry["text"].encode(),
            entry["sha"].encode(),
            tuple(entry["calls"]),
        )
        for name, entry in found["scripts"].items()
    }


def find_script(name: str) -> Script:
    """Return a script by its name."""
    return load()[name]


def read_json(name: str) -> Any:
    """Read a file beside this module, perhaps in a zip file."""
    import msgspec.json  # twice as fast as `json`; but where scripts are composed, it need not be installed

    # Spark's executors have `./leasequeue.zip`: a Path would drop the dot, and the loader not find the file.
    place = __file__.removesuffix(Path(__file__).name) + name
    try:
        data = __spec__.loader.get_data(place)  # type: ignore[union-attr]  # those of files and of zip files can
    except OSError as error:
        raise FileNotFoundError(
            f"there is no {place}: reinstall leasequeue; in a checkout, run `{COMMAND}` or `pip install -e .`"
        ) from error
    return msgspec.json.decode(data)


def _check_fresh(module: Path, digest: str) -> None:
    """Check, in a checkout, that no file has changed. Times are compared first, as reading takes longer."""
    root = module.parents[3]
    if module.parents[2].name == "src" and (root / "lua" / "compose").is_dir():
        began_ns = module.with_name(SCRIPTS).stat().st_mtime_ns
        if changed_ns(root) >= began_ns and digest_of(root) != digest:
            raise RuntimeError(f"lua/ has changed since its scripts were composed: run `{COMMAND}`")


def changed_ns(root: Path) -> int:
    """Return when one of the files that the scripts are composed from has changed last, in ns since 1970."""
    # Removing or renaming a file changes the time of its folder.
    return max(one.stat().st_ctime_ns for some in (_folders(root), _sources(root)) for one in some)


def digest_of(root: Path) -> str:
    """Return the digest of all files of a checkout that the scripts are composed from, and with."""
    digest = hashlib.sha256()
    for path in sorted(map(Path, _sources(root))):
        content = path.read_bytes()
        digest.update(b"%s %d\n" % (path.relative_to(root).as_posix().encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def _folders(root: Path) -> Iterator[Path]:
    """Yield `lua`, its rooms, and the folders with their pieces."""
    for folder, inside, _ in os.walk(root / "lua"):
        inside[:] = {*inside} - {"compose", "__pycache__"}
        yield Path(folder)


def _sources(root: Path) -> Iterator[os.DirEntry[str] | Path]:
    for folder, ending in (*((one, ".lua") for one in _folders(root)), (root / "lua/compose", ".py")):
        yield from (file for file in os.scandir(folder) if file.name.endswith(ending))
    yield from (root / "src/leasequeue" / name for name in ("keys.py", "states.py", "wire/scripts.py"))


def with_origins(text: str, script: Script) -> str:
    """Return the text of an error with the script's name, and lines of `lua/` in place of its own."""
    if "user_script" not in text:
        return text
    text = _NAMED.sub(lambda match: script.name + ", " * (not match[0].startswith("f_")), text)
    return _LINE.sub(lambda match: origin_of(script, int(match[1])) or match[0], text)


def origin_of(script: Script, line: int) -> str | None:
    """Return the file and the line that a line of a script's text is from; None: it is not known."""
    try:
        known = _line_map()
    except FileNotFoundError:  # the error of the server matters more
        return None
    runs = known["scripts"].get(script.sha.decode(), [])
    for file, first, count in zip(*[iter(runs)] * 3, strict=True):
        if line <= count:
            return f"{known['files'][file]}:{first + line - 1}"
        line -= count
    return None


@cache
def _line_map() -> Any:
    return read_json(LINES)
