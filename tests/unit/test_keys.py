"""Names of keys."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.keys import (
    KEYS,
    KeyPrefix,
    QueueKeys,
    SessionOrigin,
    check_prefix,
    new_session,
    session_origin,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@pytest.mark.seed("RWQ-O1")
def test_a_key_prefix_is_a_text() -> None:
    prefix = KeyPrefix("emails")
    assert isinstance(prefix, str)
    assert prefix == "emails"
    assert {"emails": 1}[prefix] == 1
    assert f"{prefix}!" == "emails!"
    assert prefix.upper() == "EMAILS"
    assert type(prefix.prefix) is str
    assert check_prefix(prefix) == "emails"
    assert type(check_prefix(prefix)) is str
    assert pickle.loads(pickle.dumps(prefix)) == prefix  # noqa: S301 - our own bytes


@given(NAMES, NAMES, NAMES)
@pytest.mark.seed("RWQ-O1")
def test_prefixes_are_joined(one: str, two: str, three: str) -> None:
    assert KeyPrefix(one).of(two) == one + two
    assert KeyPrefix(one).concat(two).of(three) == one + two + three
    assert isinstance(KeyPrefix(one).concat(two), KeyPrefix)
    assert type(KeyPrefix(one).of(two)) is str


@pytest.mark.seed("RWQ-K1", "WRQ-K1")
def test_the_keys_of_a_queue_follow_its_name() -> None:
    keys = QueueKeys("größer {q}", "lh:me")
    assert keys.prefix == "größer {q}".encode()
    assert keys.session == b"lh:me"
    for name in KEYS.keys() - {"inbox"}:
        assert keys[name] == f"größer {{q}}:{name}".encode()
    assert keys["inbox"] == "größer {q}:inbox:lh:me".encode()
    with pytest.raises(KeyError):
        keys["lease"]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("emails", b"emails:item:*"),
        ("jobs[1]", rb"jobs\[1\]:item:*"),
        ("a*b?c", rb"a\*b\?c:item:*"),
        ("back\\slash", rb"back\\slash:item:*"),
        ("[^a-z]", rb"\[^a-z\]:item:*"),
        ("größe", "größe:item:*".encode()),
        ("{tag}", b"{tag}:item:*"),
    ],
)
@pytest.mark.seed("RWQ-B12")
def test_glob_characters_of_a_name_stand_for_themselves(name: str, pattern: bytes) -> None:
    assert QueueKeys(name, "lh:me").data_pattern == pattern


@given(NAMES)
def test_a_pattern_matches_only_its_name(name: str) -> None:
    pattern = QueueKeys(name, "lh:me").data_pattern
    assert pattern.endswith(b":item:*")
    found, escaped = bytearray(), False
    for byte in pattern.removesuffix(b":item:*"):
        if byte == ord("\\") and not escaped:
            escaped = True
        else:
            assert escaped == (byte in b"\\*?[]")
            found.append(byte)
            escaped = False
    assert bytes(found) == name.encode()


@pytest.mark.parametrize("name", ["x", " ", "a b", "a:b", "\0", "ü" * 256, "x" * 512], ids=lambda n: n[:5])
def test_a_name_may_be_any_text_of_512_bytes(name: str) -> None:
    assert check_prefix(name) == name


@given(st.text(), st.integers(1, 2**31))
def test_a_session_tells_its_process(host: str, pid: int) -> None:
    session = new_session(host, pid)
    assert re.fullmatch(r"lh:[A-Za-z0-9._-]*/\d+/[0-9a-f]{16}", session), "no space, colon or glob"
    assert session_origin(session) == SessionOrigin(re.sub(r"[^A-Za-z0-9._-]", "-", host)[:64], pid)
    assert session != new_session(host, pid)


@pytest.mark.parametrize(
    "session", ["", "lh:scheduled", f"lh:{'0f' * 16}", "lh:a/b/0123456789abcdef", "other"]
)
def test_other_holders_tell_no_process(session: str) -> None:
    assert session_origin(session) is None
