"""The order of a flow's stages, and whose results there are for certain when a stage is entered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Node:
    """A stage, as far as the order is concerned.

    Attributes:
        after: The stages that it follows.
        chooses: Whether it chooses which of its successors are entered.
        join: Its join, as text.
    """

    after: tuple[str, ...]
    chooses: bool
    join: str

    @property
    def needed(self) -> int | None:
        """How many of those that it follows must have succeeded; None: all that were not skipped."""
        if self.join == "settled":
            return 0
        return int(self.join[2:]) if self.join.startswith("n:") else None


def ancestors(nodes: Mapping[str, Node], name: str) -> frozenset[str] | None:
    """Return the stages before a stage; None if one of them is not known, or there is a loop."""
    found: set[str] = set()
    entered: set[str] = set()  # those that the walk is below of
    left = [(name, False)]
    while left:
        one, leaves = left.pop()
        if leaves:
            entered.discard(one)
            found.add(one)
        elif one in entered or one not in nodes:
            return None
        elif one not in found:
            entered.add(one)
            left.append((one, True))
            left += [(before, False) for before in nodes[one].after]
    return frozenset(found - {name})


def certain(nodes: Mapping[str, Node], name: str) -> frozenset[str]:
    """Return the stages that have succeeded whenever a stage is entered.

    The others may have been skipped, or have failed where a join tolerates it.

    Args:
        nodes: The stages; those before this one are known, and there is no loop among them.
        name: The stage.
    """
    return _Certain(nodes).when_entered(name)


class _Certain:
    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._entered: dict[str, frozenset[str]] = {}
        self._skippable: dict[str, bool] = {}

    def when_entered(self, name: str) -> frozenset[str]:
        if name not in self._entered:
            for one in self._in_order(name):
                self._entered[one] = self._of(one)
        return self._entered[name]

    def _in_order(self, name: str) -> list[str]:
        """Return a stage and those before it that are not known yet, each after those that it follows."""
        order: dict[str, None] = {}
        left = [(name, False)]
        while left:
            one, ready = left.pop()
            if ready:
                order[one] = None
            elif one not in order and one not in self._entered:
                left.append((one, True))
                left += [(before, False) for before in self._nodes[one].after]
        return [*order]

    def _of(self, name: str) -> frozenset[str]:
        node = self._nodes[name]
        followed = [self._entered[one] | {one} for one in node.after]
        self._skippable[name] = bool(node.after) and all(
            self._nodes[one].chooses or self._skippable[one] for one in node.after
        )
        if not followed:
            return frozenset()
        # The stage is entered when at least one that it follows has succeeded, if any must.
        found = frozenset.intersection(*followed) if node.needed != 0 else frozenset[str]()
        if node.needed is None or node.needed >= len(followed):
            for one, done in zip(node.after, followed, strict=True):
                if not self._skippable[one]:
                    found |= done
        return found
