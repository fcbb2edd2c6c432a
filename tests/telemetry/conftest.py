"""The fixtures of this folder. After each test, telemetry is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import telemetry
from tests.queue.fixtures import admin, make_queue, own, queue, tidy
from tests.telemetry.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["admin", "make_queue", "own", "queue", "recorded", "switched_off", "tidy"]


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    """Switch telemetry off after the test."""
    yield
    telemetry.uninstrument()


@pytest.fixture
def recorded() -> Recorded:
    """Return what is recorded in the test, with telemetry switched on."""
    made = Recorded()
    made.switch_on()
    return made
