"""The pages about the server say what the scripts say: contracts, keys, states."""

from __future__ import annotations

import inspect
import re

from docs import generated
from leasequeue import errors
from leasequeue.keys import KEYS as KEYS_OF_SCRIPTS
from leasequeue.keys import MADE_KEYS
from leasequeue.states import GONE, ITEM_EVENTS, EventKind
from leasequeue.states import STATES as ALL_STATES
from leasequeue.wire.scripts import load
from tests.docs.pages import REFERENCE, blocks, table

PROTOCOL = REFERENCE / "protocol.md"
KEYS = REFERENCE / "keys.md"
STATES = REFERENCE / "states.md"


def test_every_script_has_its_contract_on_the_protocol_page() -> None:
    text = PROTOCOL.read_text()
    places = re.findall(r"^#+ <!-- contract (\w+) -->$", text, re.MULTILINE)
    assert sorted(places) == sorted(load())
    assert text.count("<!-- contract ") == len(places)


def test_a_contract_says_what_the_header_says() -> None:
    contract = generated.contract("renew_many")
    assert contract.startswith("`renew_many`\n\n| argument |")
    assert "| `ARGV[2]` | `now_ms` | integer | " in contract
    assert "| `ARGV[5…]` | `entries` | rest | id, token, " in contract
    keys = ("gone", "deadlines", "scheduled", "ledger", "options", "errors", "events", "none")
    assert f"- **Keys**, in this order: {', '.join(f'`P:{key}`' for key in keys)}\n" in contract
    assert "- **Limits**: at most 1,000 items a call.\n" in contract
    assert contract.endswith("- **Events**: `renewed`")
    inbox = generated.contract("leave")
    assert "`P:inbox:<session>`" in inbox
    assert "Events" not in generated.contract("register")


def test_an_event_is_described_by_its_declaration_and_the_scripts_that_emit_it() -> None:
    rows = generated.events().splitlines()
    assert len(rows) == len(ITEM_EVENTS) + 2
    assert len(generated.others().splitlines()) == len(EventKind) - len(ITEM_EVENTS) + 2
    [row] = [row for row in rows if row.startswith("| `failed` ")]
    assert row == (
        "| `failed` | `fail_many`, `run_finish` | leased | waiting; with `due`: scheduled | "
        "`token`, `attempt`, `due`, `error` |"
    )


def test_nothing_is_left_to_fill_in_on_the_built_pages() -> None:
    for page in (PROTOCOL, KEYS, STATES):
        text = generated.on_page_markdown(page.read_text())
        assert re.findall(r"<!--.*|^\| `(?:P:|leasequeue).* \|  ?\|.*", text, re.MULTILINE) == [], page.name


def test_every_key_has_its_row_and_no_other() -> None:
    in_scripts = {
        match[1]
        for script in load().values()
        for match in re.finditer(r"(?:':|key_of\(')(\w+)(?::keep)?:?'", script.body.decode())
    }
    # `push`, `due` and `live` are channels; `limits` and `queues` belong to several queues.
    others = {"push", "due", "live", "limits", "queues", "ended", "failures", *KEYS_OF_SCRIPTS} - {
        "inbox",
        "dead",
        "events",
    }
    assert in_scripts - others == {name.partition(":")[0] for name in (*MADE_KEYS, "inbox:<session>")}
    described = re.findall(r"^\| `P:([^`]+)` \| \| \|", KEYS.read_text(), re.MULTILINE)
    assert sorted(described) == sorted({*KEYS_OF_SCRIPTS, "inbox:<session>"} - {"inbox"} | {*MADE_KEYS})


def test_every_script_has_its_place_among_the_states() -> None:
    text = generated.on_page_markdown(STATES.read_text())
    assert [name for name in load() if f"`{name}`" not in text] == []


def test_every_state_has_its_row() -> None:
    rows = re.findall(r"^\| (\w+) \| [^|]* \| [^|]* \|$", STATES.read_text(), re.MULTILINE)
    assert rows == ["state", *ALL_STATES, GONE]


def test_the_picture_of_the_states_names_scripts_that_exist() -> None:
    picture = blocks(STATES)[0].code
    named = set(re.findall(r"\w+_\w+", picture))
    assert named
    assert named <= set(load())


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    tree = generated.errors_tree()
    named = re.findall(r"^[│├└─ ]*(\w+)", tree.partition("\n\n")[0], re.MULTILINE)
    classes = {
        one.__name__ for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, Exception)
    }
    assert sorted([*named, "EvictionWarning"]) == sorted(classes)
    assert sorted(classes) == sorted(errors.__all__), "what is not listed is not public"


def test_the_page_of_errors_says_what_to_do_after_each() -> None:
    page = (REFERENCE / "errors.md").read_text()
    rows = table(REFERENCE / "errors.md", "## What to do")
    explained = {name for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}
    kinds = [getattr(errors, name) for name in errors.__all__]
    inside = {errors.PayloadError, errors.TimeLimitExceeded, errors.EvictionWarning}
    raised = {kind for kind in kinds if not kind.__subclasses__()} - inside
    assert {kind.__name__ for kind in raised} <= explained <= {kind.__name__ for kind in kinds}
    [repeated] = re.findall(r"Those to repeat after a pause \((.+?)\)", page, re.DOTALL)
    transient = {kind.__name__ for kind in kinds if getattr(kind, "transient", False)}
    assert set(re.findall(r"`(\w+)`", repeated)) == transient
