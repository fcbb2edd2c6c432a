"""YAML as text, by PyYAML, so that the parsers of other languages read the same values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from leasequeue.errors import ExtraMissing

try:
    import yaml  # type: ignore[import-untyped]  # it ships no types
except ImportError as error:
    raise ExtraMissing("manifests for Kubernetes", "kubernetes") from error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # it ships no types
    """Writes texts of several lines as they are, and repeats values instead of referring to them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - PyYAML's
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    def mapping(self, data: Mapping[str, object]) -> yaml.MappingNode:
        return self.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=False)


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_representer(dict, _Dumper.mapping)
# Texts that kubectl would read as something else, and PyYAML would not: they are quoted, too.
for _tag, _pattern, _first in (
    ("bool", r"[yYnN]$", "yYnN"),
    ("int", r"[-+]?0[oO][0-7]+$", "-+0"),
    ("float", r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def yaml_text(documents: Sequence[Mapping[str, object]]) -> str:
    """Return documents as YAML, in the order of their keys.

    Raises:
        ExtraMissing: When the module is imported, if `leasequeue[kubernetes]` is not installed.
    """
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    )
    return text
