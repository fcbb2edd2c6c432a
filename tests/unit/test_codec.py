"""JSON of typed values: what can be written, what can be read, and what is refused."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from leasequeue.item.codec import UnknownType, decoder, dump_compact, encode
from tests.worker.models import Mail, Opaque, Order, Parcel


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Named(TypedDict):
    name: str


class Aliased(pydantic.BaseModel):
    sent_at: datetime = pydantic.Field(alias="sentAt")


class Tagged(msgspec.Struct, tag=True):
    one: int


class AlsoTagged(msgspec.Struct, tag=True):
    two: int


@dataclass
class Tree:
    value: Decimal
    mail: Mail | None = None
    children: list[Tree] | None = None


NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (int, 2**70),
    (float, 1.5),
    (str, "Zoë\0"),
    (bytes, b"\xff\x00"),
    (datetime, NOON),
    (date, date(2026, 11, 22)),
    (timedelta, timedelta(days=1, microseconds=3)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("0.10")),
    (Color, Color.RED),
    (Level, Level.HIGH),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "x")),
    (dict[UUID, bytes], {UUID(int=7): b"x"}),
    (Named, {"name": "x"}),
    (Order, Order(1, ["x"])),
    (Parcel | None, None),
    (Tagged | AlsoTagged, AlsoTagged(2)),
    (Mail, Mail(to="ann")),
    (Aliased, Aliased(sentAt=NOON)),
    (Tree, Tree(Decimal(1), Mail(to="ann"), [Tree(Decimal(2))])),
    (dict[str, list[Mail]], {"x": [Mail(to="ann", copies=2)]}),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_a_value_is_read_as_it_was_written(annotation: Any, value: Any) -> None:
    read = decoder(annotation)(encode(value))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (Opaque, "Opaque cannot be read from JSON"),
        (dict[str, list[Opaque]], "Opaque cannot be read"),
        (complex, "complex cannot be read"),
        (object, "object cannot be read"),
        (Order | Mail, "does not distinguish the types of this union"),
        (str | bytes, "does not distinguish the types of this union"),
        (datetime | str, "does not distinguish the types of this union"),
    ],
)
def test_a_type_that_cannot_be_told_from_json_is_refused(annotation: Any, problem: str) -> None:
    with pytest.raises(UnknownType, match=problem):
        decoder(annotation)


@pytest.mark.parametrize(
    "value",
    [object(), {"x": [float("nan")]}, float("inf"), [None, -float("inf")], {(1, 2): 3}, "\ud800", Opaque()],
)
def test_a_value_that_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_null_is_written_beside_finite_numbers() -> None:
    assert json.loads(encode([None, 1.5, {"null": "null"}])) == [None, 1.5, {"null": "null"}]


def test_what_is_json_already_may_contain_null() -> None:
    text = msgspec.Raw(b'{"email": null}')
    assert encode(text) == bytes(text)
    assert encode({"page": text}) == b'{"page":{"email": null}}'
    assert dump_compact([text]) == '[{"email":null}]'
    with pytest.raises(ValueError, match="nan"):
        encode({"page": text, "share": math.nan})
