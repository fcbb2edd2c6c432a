"""PNG files with Python's own means: 8 bits, red, green and blue, no filters."""

from __future__ import annotations

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def write_png(width: int, rows: list[bytes]) -> bytes:
    """Return a picture of these rows, of three bytes for each of its points."""
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def read_png(picture: bytes) -> tuple[int, list[bytes]]:
    """Return the width and the rows of a picture that `write_png` has written."""
    width, height = struct.unpack_from(">II", picture, 16)
    length, kind = struct.unpack_from(">I4s", picture, 33)
    assert kind == b"IDAT"
    pixels = zlib.decompress(picture[41 : 41 + length])
    line = 3 * width + 1
    return width, [pixels[line * row + 1 : line * (row + 1)] for row in range(height)]


def resized(picture: bytes, width: int) -> bytes:
    """Return the picture with another width, and a height to match."""
    before, rows = read_png(picture)
    places = [3 * (x * before // width) for x in range(width)]
    height = len(rows) * width // before
    chosen = [rows[y * len(rows) // height] for y in range(height)]
    return write_png(width, [b"".join(row[at : at + 3] for at in places) for row in chosen])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
