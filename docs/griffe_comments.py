"""An extension of Griffe: read the comment `#:` above an attribute as its docstring, as Sphinx does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    import ast

_COMMENT = re.compile(r"^\s*#: ?")


class Comments(griffe.Extension):
    """Give each attribute without a docstring the comment above it."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **_: Any
    ) -> None:
        """Read the lines above the attribute."""
        file = attr.filepath
        if attr.docstring or isinstance(node, griffe.ObjectNode) or isinstance(file, list) or not attr.lineno:
            return
        above = attr.lines_collection[file][: attr.lineno - 1]
        found: list[str] = []
        while above and _COMMENT.match(above[-1]):
            found.insert(0, _COMMENT.sub("", above.pop()))
        if found:
            first = attr.lineno - len(found)
            attr.docstring = griffe.Docstring(
                "\n".join(found), lineno=first, endlineno=attr.lineno - 1, parent=attr
            )
