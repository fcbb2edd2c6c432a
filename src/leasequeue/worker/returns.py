"""What the function of a stage returns when it is more than a value: children, or chosen successors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class FanOut(Generic[R_co]):
    """The children of a stage, which its function returns instead of a value. `fan_out` makes it.

    The stage is done when its children are joined; its result is the list of theirs, in order.

    Attributes:
        children: What each child is: a `ChildPlan`.
        join: The text of the policy by which they are joined.
        returned: What the called tasks say that they return, by their names; empty after pickling.
    """

    children: Sequence[Any]
    join: str = "all"
    returned: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[FanOut[Any]], tuple[Any, ...]]:
        return type(self), (self.children, self.join)  # types may not be picklable


@dataclass(frozen=True, init=False)
class Next(Generic[R_co]):
    """A result with the successors that are to be entered, which the function of a choosing stage returns.

        return Next(member, "rewards")

    The other successors are skipped. Without a name, all are skipped.

    Attributes:
        value: The result of the stage.
        stages: The names of its successors that are entered.
    """

    value: R_co
    stages: tuple[str, ...]

    def __init__(self, value: R_co, *stages: str) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "stages", stages)
