"""A made-up version 0.2.0 of Leasequeue, whose keys have a format 2. It reads both, and writes what is due.

What differs: a dead letter has its error in the field `why`; and there is a state more, `parked`, in a list
of its own. Of the former, a version that knows format 1 alone would show no error; of the latter, its deep
clean would take the items for lost, and put them back.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import leasequeue

#: Whether a script may write format 2.
WRITES = "tonumber(string.match(call('GET',ARGV[1]..':format')or'1','^%d+'))>=2"
#: The calls of format 1, and what is in their place.
CHANGES = {
    "':too_new_for:1'": "':too_new_for:2'",
    "'data',data,'error',text": f"'data',data,{WRITES} and 'why' or 'error',text",
    "call('HMGET',key,'error','attempt','token')\nreturn size,data,facts[1] or ''": (
        "call('HMGET',key,'error','attempt','token','why')\nreturn size,data,facts[1] or facts[4] or ''"
    ),
}
SCANNED = "if not leased[i] and not due[i] then"
#: Adds an item that is parked, or has all that are parked wait.
PARK = f"""
local call = redis.call
local list=ARGV[1]..':parked'
if ARGV[2]=='back' then
while call('LMOVE',list,KEYS[1],'LEFT','RIGHT') do end
return 0
end
if not ({WRITES}) then return redis.error_reply('LIMIT no format 2') end
call('SET',ARGV[1]..':item:parked','x')
return call('LPUSH',list,'parked')
"""


def make_newer(folder: Path) -> Path:
    """Write the version into a folder, and return what has to be in PYTHONPATH."""
    package = folder / "leasequeue"
    shutil.copytree(Path(leasequeue.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "leasequeue-0.2.0.dist-info").mkdir()
    (folder / "leasequeue-0.2.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: leasequeue\nVersion: 0.2.0\n"
    )
    keys = package / "keys.py"
    keys.write_text(replaced(keys.read_text(), "FORMAT, FLOOR = 1, 1", "FORMAT, FLOOR = 2, 2"))
    path = package / "wire/scripts.json"
    composed = json.loads(path.read_text())
    scripts = composed["scripts"]
    scripts["park"] = scripts["deep_clean_scan"] | {
        "keys": ["queue", "none"],
        "arguments": {"prefix": "text", "what": "text"},
        "text": PARK,
    }
    for name, one in scripts.items():
        for old, new in CHANGES.items():
            one["text"] = one["text"].replace(old, new)
        if name == "deep_clean_scan":
            parked = "call('LPOS',ARGV[1]..':parked',ids[from+i-1])"
            one["text"] = replaced(one["text"], SCANNED, SCANNED.replace(" then", f" and not {parked} then"))
        one["sha"] = hashlib.sha1(one["text"].encode(), usedforsecurity=False).hexdigest()
    texts = "".join(one["text"] for one in scripts.values())
    assert all(new in texts and (old in new or old not in texts) for old, new in CHANGES.items())
    path.write_text(json.dumps(composed))
    return folder


def replaced(text: str, old: str, new: str) -> str:
    """Return a text with a change in the one place where it has to be."""
    assert text.count(old) == 1, f"format 2 changes {old!r}, which is there {text.count(old)} times"
    return text.replace(old, new)


def path_with(newer: Path) -> str:
    """Return PYTHONPATH for programs of the newer version."""
    return os.pathsep.join([str(newer), str(Path(__file__).parents[2])])
