"""Reads the files of `lua/`, and writes the composed scripts where the package loads them.

Each file is written under another name and then renamed. So every reader gets a whole one, also if two
processes compose at once, or one is killed.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue.wire.scripts import LINES, SCRIPTS, changed_ns, digest_of
from lua.compose.composer import Composed, compose
from lua.compose.encodings import PLACE, check_used, put_in, read_constants
from lua.compose.linker import BrokenContract, Library, is_piece, name_of
from lua.compose.uses import with_uses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lua.compose.marks import Origin

#: The checkout, or an unpacked sdist.
ROOT = Path(__file__).parents[2]
#: A temporary file of this age was left behind (10 minutes): composing takes seconds.
LEFT_NS = 600 * 10**9


class Sources:
    """The files of `lua/`.

    Args:
        texts: Their texts by their paths, such as `leases/lease_many`, `lanes/lib/lanes`.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.constants = read_constants(texts.get(PLACE, ""))
        self._plain = {path: put_in(text, self.constants) for path, text in texts.items() if path != PLACE}
        self.scripts = {path: text for path, text in self._plain.items() if not is_piece(path)}
        path_of: dict[str, str] = {}
        for path in texts:
            other = path_of.setdefault(name_of(path), path)
            if other != path:
                raise BrokenContract(f"lua/{path}.lua: has the name of lua/{other}.lua")

    @classmethod
    def read(cls) -> Sources:
        """Read those of this checkout."""
        folder = ROOT / "lua"
        files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in folder.rglob("*.lua")}
        return cls({path: files[path].read_text("utf-8") for path in sorted(files, key=name_of)})

    @cached_property
    def library(self) -> Library:
        """The shared functions."""
        return Library({path: text for path, text in self._plain.items() if is_piece(path)})

    def compose(self) -> dict[str, Composed]:
        """Check and compose all scripts, and return them by their names."""
        check_used(self.constants, (text for path, text in self.texts.items() if path != PLACE))
        self.library.check()
        return {name_of(path): compose(path, self.scripts, self.library) for path in self.scripts}

    def with_uses(self) -> dict[str, str]:
        """Return the texts of the files whose header does not say which foreign names are used, with it."""
        pieces = self.library.pieces
        texts = {
            path: with_uses(text, self.library, pieces.get(name_of(path)), {*self.constants})
            for path, text in self.texts.items()
            if path != PLACE
        }
        return {path: text for path, text in texts.items() if text != self.texts[path]}


def refresh() -> bool:
    """Compose the scripts of this checkout, if they are missing or a file has changed since.

    Returns:
        Whether they were composed.
    """
    folder = ROOT / "src" / "leasequeue" / "wire"
    began_ns = _now_ns(folder)
    place = folder / SCRIPTS
    if place.exists() and (folder / LINES).exists():
        if changed_ns(ROOT) < place.stat().st_mtime_ns:
            return False
        if digest_of(ROOT) == json.loads(place.read_bytes())["digest"]:
            os.utime(place, ns=(began_ns, began_ns))  # so that times are enough from now on
            return False
    digest = digest_of(ROOT)  # before the files are read: what changes in between is newer than the result
    scripts = Sources.read().compose()
    _replace(folder / LINES, line_map(scripts), began_ns)
    _replace(place, {"digest": digest, "scripts": manifest(scripts)}, began_ns)
    _remove_leftovers(folder, began_ns)
    return True


def write_texts(folder: Path) -> None:
    """Compose all scripts and write each into its own file, for linters and other clients."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in Sources.read().compose().items():
        (folder / f"{name}.lua").write_bytes(script.body + b"\n")


def write_uses() -> None:
    """Write into the header of each file which foreign names its code uses."""
    for path, text in Sources.read().with_uses().items():
        (ROOT / "lua" / f"{path}.lua").write_text(text, "utf-8")


def check_uses() -> None:
    """Check that the headers name the foreign names that their code uses."""
    outdated = Sources.read().with_uses()
    if outdated:
        files = ", ".join(f"lua/{path}.lua" for path in outdated)
        raise BrokenContract(f"the section Uses is not that of the code in {files}: run `make format`")


def manifest(scripts: Mapping[str, Composed]) -> dict[str, Any]:
    """Return the texts of scripts, and what the program needs to know of each."""
    return {
        name: {
            "keys": script.keys,
            "arguments": script.arguments,
            "events": sorted(script.events),
            "commands": sorted(script.commands),
            "calls": script.calls,
            "sha": script.sha.decode(),
            "text": script.body.decode(),
        }
        for name, script in scripts.items()
    }


def line_map(scripts: Mapping[str, Composed]) -> dict[str, Any]:
    """Return the names of the files, and for each script, by its SHA-1, where its lines are from.

    Three numbers describe lines that follow each other in a file, too: which file, the first line, how many.
    """
    files = sorted({origin.file for script in scripts.values() for origin in script.origins})
    number_of = {file: number for number, file in enumerate(files)}
    found = {script.sha.decode(): _runs(script.origins, number_of) for script in scripts.values()}
    return {"files": files, "scripts": found}


def _runs(origins: Iterable[Origin], number_of: Mapping[str, int]) -> list[int]:
    runs: list[int] = []
    for file, line in origins:
        if runs and runs[-3] == number_of[file] and sum(runs[-2:]) == line:
            runs[-1] += 1
        else:
            runs += [number_of[file], line, 1]
    return runs


def _now_ns(folder: Path) -> int:
    """Return the time by the clock of the file system, which may be some milliseconds behind."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{SCRIPTS}.") as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _remove_leftovers(folder: Path, began_ns: int) -> None:
    """Remove what processes have left behind that were killed. What is younger may still be written."""
    for file in (*folder.glob(f"{SCRIPTS}.*"), *folder.glob(f"{LINES}.*")):
        with suppress(FileNotFoundError):
            if file.stat().st_mtime_ns < began_ns - LEFT_NS:
                file.unlink()


def _replace(place: Path, value: Any, began_ns: int) -> None:
    """Write a file whole: under another name, which is then given up for its own."""
    with tempfile.NamedTemporaryFile("w", dir=place.parent, prefix=f"{place.name}.", delete=False) as file:
        json.dump(value, file, separators=(",", ":"))
    written = Path(file.name)
    written.chmod(0o644)  # temporary files are for one user alone
    os.utime(written, ns=(began_ns, began_ns))
    written.replace(place)
