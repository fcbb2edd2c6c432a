"""Importing the names of a package when they are first used, so that programs start quickly."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def lazy_names(
    package: str, names: Sequence[str], modules: Sequence[str], *, parent: str = ""
) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that imports its names when they are first used.

    The modules are searched in this order: what takes longer to import comes later. They are attributes of
    the package, too, unless they are those of another one, `parent`.
    """
    place_of = parent or package

    def find(name: str) -> object:
        if name in modules and not parent:
            return importlib.import_module(f"{package}.{name}")
        for module in modules if name in names else ():
            place = importlib.import_module(f"{place_of}.{module}")
            if hasattr(place, name):
                setattr(sys.modules[package], name, getattr(place, name))
                return getattr(place, name)
        raise AttributeError(  # with `obj`, Python suggests a similar name
            f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package]
        )

    return find
