"""Scripts that two threads compose at once, as a worker does when it starts."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from leasequeue.scripting import catalogue
from leasequeue.scripting.linker import read_piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue.scripting.catalogue import Script

PIECE = """\
-- Say it louder.
--
-- Needs: prefix
-- Gives: shout

local function shout(text)
  return text .. '!'
end
"""


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("switching_often")
def test_threads_that_compose_at_once_compose_the_same() -> None:
    """A worker composes in two threads when it starts: on its event loop, and in the background."""
    expected = catalogue.load()
    catalogue.find_script.cache_clear()
    catalogue._library.cache_clear()
    together = Barrier(2)

    def compose_all() -> dict[str, Script]:
        together.wait()
        return {name: catalogue.find_script(name) for name in expected}

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(compose_all), threads.submit(compose_all)
        assert first.result() == expected
        assert second.result() == expected


def test_a_piece_that_is_read_twice_is_the_same() -> None:
    """Two threads may each read it: `cached_property` has no lock since Python 3.12."""
    piece, again = (read_piece("shout", PIECE) for _ in range(2))
    assert {*piece.blocks} == {*again.blocks}
