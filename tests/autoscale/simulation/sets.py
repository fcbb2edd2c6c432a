"""The sets of loads: those on which the rule was tuned, and those that were held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.autoscale.simulation.held_out import HELD_OUT
from tests.autoscale.simulation.loads import LOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.autoscale.simulation.load import Load

SETS: Mapping[str, Mapping[str, Callable[..., Load]]] = {"tuned_on": LOADS, "held_out": HELD_OUT}
ALL: Mapping[str, Callable[..., Load]] = LOADS | HELD_OUT
