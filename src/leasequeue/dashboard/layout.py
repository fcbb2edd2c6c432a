"""Where the stages of a flow run are drawn: in layers, each after what it follows, with few crossings."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: How many edges are drawn, and through how many layers they are led around the boxes in all.
MAX_EDGES, MAX_BENDS = 600, 2_000
#: How often the layers are sorted, forth and back.
_SWEEPS = 4


@dataclass(frozen=True, kw_only=True)
class Look:
    """The sizes of a drawing, in its units."""

    #: Whether the layers follow each other from top to bottom, for narrow screens; else from left to right.
    down: bool
    #: The size of a box.
    width: int
    height: int
    #: The distance between layers, between boxes of one layer, and of all from the border.
    between: int
    beside: int
    border: int = 16


WIDE = Look(down=False, width=212, height=62, between=64, beside=26)
NARROW = Look(down=True, width=106, height=62, between=44, beside=12, border=10)


@dataclass(kw_only=True)
class Drawing:
    """A drawn graph: the upper left corner of each box, the path of each edge, and the end of its arrow."""

    look: Look
    width: float = 0
    height: float = 0
    boxes: dict[str, tuple[float, float]] = field(default_factory=dict)
    edges: list[tuple[str, str, str, float, float]] = field(default_factory=list)


class Layers:
    """The stages of a graph in layers, in which those that follow each other are near each other."""

    def __init__(self, after: Mapping[str, Sequence[str]]) -> None:
        edges = [(one, name) for name, before in after.items() for one in before if one in after]
        #: How many edges are not drawn.
        self.left_out = max(0, len(edges) - MAX_EDGES)
        self._edges = edges[:MAX_EDGES]
        depth: dict[str, int] = {}
        for (
            _
        ) in after:  # the longest path to each; a plan has no loop, and its order is mostly that of the edges
            found = {
                name: 1 + max((depth.get(one, 0) for one in before if one in after), default=-1)
                for name, before in after.items()
            }
            if found == depth:
                break
            depth = found
        self._layers: list[list[str | tuple[int, int]]] = [
            [] for _ in range(max(depth.values(), default=-1) + 1)
        ]
        for name in after:
            self._layers[depth[name]].append(name)
        #: The places that each edge passes, from box to box.
        self._paths: list[list[str | tuple[int, int]]] = []
        bends = sum(depth[end] - depth[start] - 1 for start, end in self._edges) <= MAX_BENDS
        for number, (start, end) in enumerate(self._edges):
            between = [(number, layer) for layer in range(depth[start] + 1, depth[end])] if bends else []
            for bend in between:
                self._layers[bend[1]].append(bend)
            self._paths.append([start, *between, end])
        self._sort()

    def _sort(self) -> None:
        """Move each near the middle of what it follows, and of what follows it, by turns."""
        before: dict[object, list[object]] = {}
        behind: dict[object, list[object]] = {}
        for path in self._paths:
            for one, other in itertools.pairwise(path):
                before.setdefault(other, []).append(one)
                behind.setdefault(one, []).append(other)
        for turn in range(_SWEEPS):
            near, layers = (before, self._layers) if turn % 2 == 0 else (behind, self._layers[::-1])
            place: dict[object, float] = {}
            for layer in layers:
                own = {one: float(at) for at, one in enumerate(layer)}
                layer.sort(key=lambda one: _middle((place.get(it, 0) for it in near.get(one, ())), own[one]))
                place |= {one: at - len(layer) / 2 for at, one in enumerate(layer)}

    def draw(self, look: Look) -> Drawing:
        """Return the drawing."""
        # The size of a box: beside others of its layer, and from layer to layer.
        across, along = (look.width, look.height) if look.down else (look.height, look.width)
        breadth = [
            sum(across if isinstance(one, str) else 0 for one in layer) + look.beside * (len(layer) - 1)
            for layer in self._layers
        ]
        widest = max(breadth, default=0)
        drawing = Drawing(look=look)
        places: dict[object, tuple[float, float]] = {}  # the middle across, and the beginning along
        for depth, layer in enumerate(self._layers):
            at = look.border + (widest - breadth[depth]) / 2
            for one in layer:
                own = across if isinstance(one, str) else 0
                start = look.border + depth * (along + look.between)
                places[one] = at + own / 2, start
                if isinstance(one, str):
                    drawing.boxes[one] = self._turned(look, at, start)
                at += own + look.beside
        ends = look.border * 2 + len(self._layers) * (along + look.between) - look.between
        drawing.width, drawing.height = self._turned(look, widest + 2 * look.border, ends)
        for path in self._paths:
            drawing.edges.append(self._edge(look, path, places, along))
        return drawing

    def _edge(
        self,
        look: Look,
        path: Sequence[str | tuple[int, int]],
        places: Mapping[object, tuple[float, float]],
        along: int,
    ) -> tuple[str, str, str, float, float]:
        across, at = places[path[0]][0], places[path[0]][1] + along
        text = "M{:g} {:g}".format(*self._turned(look, across, at))
        for one in path[1:]:
            to, end = places[one]
            half = (at + end) / 2
            curve = [(across, half), (to, half), (to, end)]
            text += "C" + " ".join("{:g} {:g}".format(*self._turned(look, *point)) for point in curve)
            across, at = to, end
            if not isinstance(one, str):
                at += along
                text += "L{:g} {:g}".format(*self._turned(look, across, at))
        return str(path[0]), str(path[-1]), text, *self._turned(look, across, at)

    @staticmethod
    def _turned(look: Look, across: float, along: float) -> tuple[float, float]:
        return (across, along) if look.down else (along, across)


def _middle(values: Iterable[float], else_: float) -> float:
    some = [*values]
    return sum(some) / len(some) if some else else_
