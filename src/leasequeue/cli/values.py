"""Values of options and arguments, converted without pydantic, whose import takes longer than most commands.

Newer versions of typer convert each value with pydantic, also a text. Older ones are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def convert_quickly(parameters: list[Any]) -> list[Any]:
    """Have parameters convert texts, and values that have a parser, without pydantic; return them."""
    for one in parameters:
        if hasattr(one, "get_runtime_param") and "get_runtime_param" not in vars(one):
            one.get_runtime_param = _Quick(one, one.get_runtime_param).itself
    return parameters


class _Quick:
    """What typer asks to convert a value.

    Args:
        parameter: The parameter.
        make: Returns typer's own.
    """

    def __init__(self, parameter: Any, make: Callable[[], Any]) -> None:
        self._make = make
        annotation = parameter.type_descriptor.annotation
        self._many = annotation == list[str]
        self._parse = parameter.type_descriptor.parameter_info.parser
        if self._parse is None and annotation in {str, list[str]}:
            self._parse = str

    def itself(self) -> _Quick:
        """Return it: what is called in place of `make`."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter, converted."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._parse is None:
            return self._make().coerce(value, param=param, ctx=ctx)
        return [self._parse(one) for one in value] if self._many else self._parse(value)
