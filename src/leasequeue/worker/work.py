"""How much a worker has done of what a handler is for."""

from __future__ import annotations


class Work:
    """The work of one handler.

    Attributes:
        items: How many items its runs had.
        seconds: For how many seconds they ran, all together.
        squares: The sum of the squares of the seconds that each item took. Each item of a batch counts as if
            it had taken its part of the time.
    """

    __slots__ = ("items", "seconds", "squares")

    def __init__(self) -> None:
        self.items = 0
        self.seconds = 0.0
        self.squares = 0.0
