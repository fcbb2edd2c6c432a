"""Items: an id and some bytes."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.item import MAX_ID_BYTES, Item, check_id

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_ID_BYTES // 4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.binary())
@pytest.mark.seed("RWQ-O2")
def test_bytes_stay_as_they_are(data: bytes) -> None:
    item = Item(data)
    assert item.data == data
    for same in (bytearray(data), memoryview(data)):
        assert Item(same).data == data
        assert type(Item(same).data) is bytes


@given(TEXTS)
@pytest.mark.seed("RWQ-O3")
def test_text_becomes_utf_8(text: str) -> None:
    assert Item(text).data == text.encode()


def test_later_changes_of_the_buffer_do_not_change_the_item() -> None:
    data = bytearray(b"work")
    item = Item(data)
    data[:] = b"else"
    assert item.data == b"work"


def test_a_view_with_gaps_is_copied() -> None:
    assert Item(memoryview(b"a-b-c")[::2]).data == b"abc"


@pytest.mark.seed("RWQ-O2")
def test_a_random_id_is_a_uuid_in_32_hex_digits() -> None:
    for _ in range(1_000):
        item_id = Item(b"work").id
        made = uuid.UUID(hex=item_id)
        assert (item_id, made.version, made.variant) == (made.hex, 4, uuid.RFC_4122)


@given(IDS)
def test_an_id_may_be_any_text(item_id: str) -> None:
    assert Item(b"work", id=item_id).id == item_id
    assert Item(b"work", item_id).id == item_id


@pytest.mark.parametrize(
    "item_id", ["a" * 512, "ü" * 256, "€" * 170, "\0", " ", "\n", "a:b", "{}*[]"], ids=repr
)
def test_an_id_may_have_512_bytes(item_id: str) -> None:
    assert check_id(item_id) == item_id


@given(JSON)
def test_json_data_is_encoded_and_decoded(value: Any) -> None:
    item = Item.from_json_data(value, id="a")
    assert item.data_json() == value
    assert item.id == "a"
    assert item.data == json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.seed("RWQ-O4")
def test_json_is_compact_and_ascii() -> None:
    assert Item.from_json_data({"a": [1, 2], "b": "ü"}).data == b'{"a":[1,2],"b":"\\u00fc"}'


@given(st.binary() | TEXTS, IDS)
@pytest.mark.seed("RWQ-O5")
def test_an_item_is_made_of_a_mapping(data: bytes | str, item_id: str) -> None:
    assert Item.from_dict({"data": data, "id": item_id}) == Item(data, item_id)
    assert len(Item.from_dict({"data": data}).id) == 32
    assert len(Item.from_dict({"data": data, "id": None}).id) == 32
    assert Item.from_dict({"data": data, "id": item_id, "more": 1}) == Item(data, item_id)


@given(TEXTS, IDS)
@pytest.mark.seed("RWQ-O5")
def test_an_item_is_parsed_from_json(data: str, item_id: str) -> None:
    text = json.dumps({"data": data, "id": item_id})
    assert Item.parse(text) == Item.parse(text.encode()) == Item(data, item_id)


@given(st.binary())
@pytest.mark.seed("RWQ-O7", "WRQ-O3")
def test_equal_content_has_equal_ids(data: bytes) -> None:
    item = Item.with_content_id(data)
    assert item == Item.with_content_id(bytearray(data))
    assert item.id == hashlib.sha256(data).hexdigest()
    assert item.data == data
    assert item.id != Item.with_content_id(data + b"x").id


def test_text_and_its_bytes_are_equal_content() -> None:
    assert Item.with_content_id("größer") == Item.with_content_id("größer".encode())


def test_items_are_equal_if_their_id_and_data_are() -> None:
    item = Item(b"work", id="a")
    assert item == Item("work", id="a")
    assert hash(item) == hash(Item("work", id="a"))
    assert item != Item(b"work", id="b")
    assert item != Item(b"other", id="a")
    assert item != ("a", b"work")
    assert len({item, Item(b"work", "a"), Item(b"work", "b")}) == 2


def test_an_item_leaves_comparisons_to_other_types() -> None:
    assert Item(b"work") == ANY
    assert Item(b"work").__eq__("work") is NotImplemented


def test_data_that_is_not_json_raises_a_value_error() -> None:
    for data in (b"", b"{", b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            Item(data).data_json()


def test_a_repr_names_the_item_and_hides_its_data() -> None:
    assert repr(Item(b"secret", id="a")) == "Item(id='a', 6 bytes)"
