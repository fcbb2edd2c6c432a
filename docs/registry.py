"""A hook of hatchling: make of the README what a package registry shows of it.

A link to a file of the checkout leads nowhere there. Where `[project.urls]` names a `Repository`, it leads to
the file there, at the tag of the version; otherwise its text stays, and an image goes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A block of code, which stays; or a link into the checkout.
CODE_OR_LINK = re.compile(r"^```.*?^```$|(!?)\[([^]]*)\]\((?![\w+.-]+:|#)([^)]+)\)", re.DOTALL | re.MULTILINE)


class RegistryReadme(MetadataHookInterface):
    """Sets `readme`, which is dynamic in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read the README and rewrite its links."""
        repository = metadata.get("urls", {}).get("Repository", "").rstrip("/")

        def rewritten(found: re.Match[str]) -> str:
            image, text, path = found.groups()
            if path is None:
                return found[0]
            if not repository:
                return "" if image else text
            return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/v{metadata['version']}/{path})"

        text = CODE_OR_LINK.sub(rewritten, Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
