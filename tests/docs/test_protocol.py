"""The pages about the server say what the scripts say: contracts, keys, states."""

from __future__ import annotations

import re

from leasehold import errors
from leasehold.keys import QueueKeys
from leasehold.scripting import catalogue, server_errors
from tests.docs import contracts
from tests.docs.pages import REFERENCE, blocks

KEYS = REFERENCE / "keys.md"
STATES = REFERENCE / "states.md"
ERRORS = REFERENCE / "errors.md"


def test_every_script_has_its_contract_on_the_protocol_page() -> None:
    assert contracts.scripts_of(contracts.PAGE.read_text()) == set(catalogue.load())


def test_the_contracts_are_those_of_the_headers() -> None:
    page = contracts.PAGE.read_text()
    assert page == contracts.renewed(page), "bring it up to date: python -m tests.docs.contracts"


def test_every_key_has_its_row() -> None:
    in_scripts = {
        match[1]
        for script in catalogue.load().values()
        for match in re.finditer(r"':(\w+):'", script.body.decode())
    }
    described = set(re.findall(r"^\| `P:(\w+)(?::<\w+>)?` \|", KEYS.read_text(), re.MULTILINE))
    assert described == in_scripts | set(QueueKeys.NAMES)


def test_every_script_has_its_place_among_the_states() -> None:
    assert not [name for name in catalogue.load() if f"`{name}`" not in STATES.read_text()]


def test_the_picture_of_the_states_names_scripts_that_exist() -> None:
    picture = blocks(STATES)[0].code
    named = set(re.findall(r"\w+_\w+", picture))
    assert named
    assert named <= set(catalogue.load())


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    tree = blocks(ERRORS)[0].code
    assert tree in f"{errors.__doc__}\n"


def test_every_error_of_the_server_that_is_translated_is_named() -> None:
    words = [word for word, _ in server_errors._BY_WORD]
    assert words
    assert not [word for word in words if f"`{word}`" not in ERRORS.read_text()]
