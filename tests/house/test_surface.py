"""What `import leasehold` offers is listed, in order, and documented."""

from __future__ import annotations

import inspect
import types

import leasehold


def test_all_names_what_the_package_offers() -> None:
    offered = {
        name
        for name, value in vars(leasehold).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert {name for name in leasehold.__all__ if not name.startswith("__")} == offered


def test_all_is_sorted_and_has_no_doubles() -> None:
    assert list(leasehold.__all__) == sorted(set(leasehold.__all__))


def test_each_public_class_and_function_has_a_docstring() -> None:
    documentable = [
        value
        for name in leasehold.__all__
        if inspect.isclass(value := getattr(leasehold, name)) or inspect.isroutine(value)
    ]
    assert documentable
    assert not [thing.__name__ for thing in documentable if not own_docstring(thing)]


def test_each_public_method_has_a_docstring() -> None:
    bare = [
        f"{owner.__name__}.{name}"
        for exported in leasehold.__all__
        if inspect.isclass(owner := getattr(leasehold, exported))
        for name, member in vars(owner).items()
        if not name.startswith("_") and is_documentable(member) and not own_docstring(member)
    ]
    assert not bare


def is_documentable(member: object) -> bool:
    return inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)


def own_docstring(thing: object) -> str:
    """The docstring of a thing itself, not one that is inherited or made up by `dataclass`."""
    if not inspect.isclass(thing):
        return inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    docstring = inspect.cleandoc(vars(thing).get("__doc__") or "")
    return "" if docstring.startswith(f"{thing.__name__}(") else docstring
