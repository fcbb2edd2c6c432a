"""Add to an SBOM what a wheel carries of others: `sbom.py WHEEL <FROM >TO`.

cyclonedx-py lists what is installed beside the package. What was copied into it, as the JavaScript of the
dashboard, it cannot see: files `NAME-VERSION.min.js`, each with `NAME-VERSION.LICENSE` beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

#: The first lines of the licences of vendored files.
LICENSES = {"Zero-Clause BSD": "0BSD", "MIT License": "MIT"}
VENDORED = re.compile(r"(?P<start>.*/(?P<name>[\w-]+)-(?P<version>\d[\d.]*\d))\.min\.js")


def vendored(wheel: zipfile.ZipFile) -> list[dict[str, Any]]:
    """Return the components that the wheel carries, by npm's names."""
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:npm/{found['name']}@{found['version']}",
            "name": found["name"],
            "version": found["version"],
            "purl": f"pkg:npm/{found['name']}@{found['version']}",
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read(path)).hexdigest()}],
            "licenses": [{"license": {"id": license_of(wheel.read(f"{found['start']}.LICENSE"))}}],
            "evidence": {"occurrences": [{"location": path}]},
        }
        for path in sorted(wheel.namelist())
        if (found := VENDORED.fullmatch(path))
    ]


def license_of(text: bytes) -> str:
    """Return the SPDX id of a licence."""
    return LICENSES[text.decode().partition("\n")[0]]


def main() -> None:
    """Add the components, take out what names other places, and check the whole by its schema."""
    sbom = json.load(sys.stdin)
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        added = vendored(wheel)
    root = sbom["metadata"]["component"]
    root["purl"] = f"pkg:pypi/{root['name']}@{root['version']}"
    for component in (*sbom["components"], *sbom["metadata"]["tools"]["components"]):
        component.pop(
            "externalReferences", None
        )  # a package's name and version say where more is to be found
    sbom["components"] += added
    names = [component["bom-ref"] for component in added]
    for dependency in sbom["dependencies"]:
        if dependency["ref"] == root["bom-ref"]:
            dependency["dependsOn"] = sorted([*dependency.get("dependsOn", []), *names])
    sbom["dependencies"] += [{"ref": name} for name in names]
    text = json.dumps(sbom, indent=1, sort_keys=True)
    wrong = JsonStrictValidator(SchemaVersion.from_version(sbom["specVersion"])).validate_str(text)
    if wrong:
        sys.exit(f"sbom: {wrong}")
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
