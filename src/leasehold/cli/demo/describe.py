"""What is done with one file; and a filter that does it with no queue in between, for the check.

python -m leasehold.cli.demo.describe FOLDER < paths, each followed by a NUL > lines of JSON
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from leasehold.cli.demo.files import id_of

#: A line of the output: `id`, `path`, and either what was found or `error`.
Line = dict[str, Any]

_CHUNK_BYTES = 256 << 10
_TOP = 10
#: Longer "words" do not count; and with more different ones than this, rare ones are forgotten, so that a
#: huge binary file does not fill the memory.
_LONGEST_WORD = 64
_MOST_WORDS = 200_000
#: Letters in lower case, all else as spaces. Bytes beyond ASCII are letters, so UTF-8 stays in one piece.
_LETTERS = bytes(byte if byte >= 0x80 or chr(byte).isalpha() else 0x20 for byte in bytes(range(256)).lower())


def describe(folder: Path, path: bytes) -> Line:
    """Read a file, in chunks, and say what is in it. The same file always gives the same line.

    Returns:
        `sha256`, `bytes`, `lines` (as `wc -l` counts them) and `words`, the ten commonest with their counts;
        or, if the file cannot be read, `error`: that is a result as well.
    """
    line: Line = {"id": id_of(path), "path": path.decode(errors="backslashreplace")}
    try:
        return line | _contents(folder / os.fsdecode(path))
    except OSError as error:
        return line | {"error": f"{type(error).__name__}: {error.strerror}"}


def dump(value: Any) -> bytes:
    """Write a value as one line of JSON; line breaks inside of strings are escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _contents(path: Path) -> Line:
    digest = hashlib.sha256()
    size = lines = 0
    words: Counter[bytes] = Counter()
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            lines += chunk.count(b"\n")
            text = rest + chunk.translate(_LETTERS)
            cut = text.rfind(b" ") + 1
            words.update(text[:cut].split())
            # The chunk may end within a word. Of one that is too long anyway no more is kept than shows it.
            rest = text[cut:][: _LONGEST_WORD + 1]
            if len(words) > _MOST_WORDS:
                words = _without_rare(words)
    words.update(rest.split())
    return {"sha256": digest.hexdigest(), "bytes": size, "lines": lines, "words": _commonest(words)}


def _without_rare(words: Counter[bytes]) -> Counter[bytes]:
    rare = 1
    while len(words) > _MOST_WORDS // 2:
        words = Counter({word: count for word, count in words.items() if count > rare})
        rare *= 2
    return words


def _commonest(words: Counter[bytes]) -> list[list[str | int]]:
    ranked = ((-count, word) for word, count in words.items() if len(word) <= _LONGEST_WORD)
    return [[word.decode(errors="backslashreplace"), -count] for count, word in heapq.nsmallest(_TOP, ranked)]


def _main() -> None:
    folder = Path(sys.argv[1])
    for path in sys.stdin.buffer.read().split(b"\0")[:-1]:
        sys.stdout.buffer.write(dump(describe(folder, path)))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
