"""Tests of which types fit which, with the codec as the judge: what fits can be read as what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from leasequeue.tasks.fitting import accepts_none, fits, member_of, name_of

T = TypeVar("T")


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


@dataclass
class User:
    name: str
    age: int


@dataclass
class Admin(User):
    level: int = 1


class Row(TypedDict):
    name: str
    note: NotRequired[str | None]


class Struct(msgspec.Struct, rename="camel"):
    user_name: str
    tags: list[str] = []


class Pair(msgspec.Struct, array_like=True):
    left: int


class Model(pydantic.BaseModel):
    user_id: int = pydantic.Field(alias="userId")


class Box(msgspec.Struct, Generic[T]):
    value: T


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, int),
        (int, float),
        (Any, int),
        (int, Any),
        (int, object),
        (None, None),
        (int, int | None),
        (int | None, None | int | str),
        (UserId, int),
        (Annotated[int, "id"], int),
        (Colour, str),
        (Size, int),
        (Literal["a"], str),
        (Literal["a"], Literal["a", "b"]),
        (Literal["a"] | None, Literal["a", "b"] | None),
        (list[int], list[int]),
        (list[int], Sequence[float]),
        (tuple[int, ...], list[int]),
        (tuple[int, int], Iterable[int]),
        (tuple[int, str], tuple[float, str]),
        (set[str], list[str]),
        (list[int], list),
        (list, list[int]),
        (dict[str, int], Mapping[str, float]),
        (dict, dict[str, int]),
        (User, User),
        (Admin, User),
        (list[Admin], list[User]),
        (User, dict[str, Any]),
        (User, dict),
        (Row, dict[str, str | None]),
        (Box[int], Box[int]),
        (Box[int], Box[float]),
        (T, int),
        (UUID, UUID),
    ],
)
def test_what_fits(given: Any, wanted: Any) -> None:
    assert fits(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, str),
        (str, int),
        (float, int),
        (bool, int),
        (bool, float),
        (datetime, date),
        (None, int),
        (int | None, int),
        (int | str, int),
        (str, Sequence[str]),
        (str, Literal["a"]),
        (Literal["c"], Literal["a", "b"]),
        (Literal[1], Literal[True]),
        (list[int], list[str]),
        (list[int | None], list[int]),
        (list[int], tuple[int, int]),
        (tuple[int, int], tuple[int]),
        (list[int], dict[str, int]),
        (dict[str, int], dict[str, str]),
        (dict[str, Any], User),
        (User, Admin),
        (User, dict[str, str]),
        (User, list[Any]),
        (Pair, dict[str, Any]),
        (Box[int], Box[str]),
        (User, Row),
        (int, User),
    ],
)
def test_what_does_not_fit(given: Any, wanted: Any) -> None:
    assert not fits(given, wanted)


def test_none_is_accepted_by_a_union_with_it() -> None:
    assert accepts_none(int | None)
    assert accepts_none(Any)
    assert not accepts_none(int)


@pytest.mark.parametrize(
    ("kind", "name", "member"),
    [
        (User, "age", ("age", int)),
        (Admin, "level", ("level", int)),
        (Row, "note", ("note", str | None)),
        (Struct, "user_name", ("userName", str)),
        (Model, "user_id", ("userId", int)),
        (dict[str, int], "any", ("any", int)),
        (Any, "any", ("any", Any)),
        (User, "email", None),
        (Pair, "left", None),
        (dict[int, str], "any", None),
        (int, "real", None),
        (list[int], "count", None),
    ],
)
def test_the_members_of_a_value_with_their_names_in_json(kind: Any, name: str, member: Any) -> None:
    assert member_of(kind, name) == member


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (int, "int"),
        (None, "None"),
        (list[int], "list[int]"),
        (int | None, "int | None"),
        (User, "User"),
        (Any, "Any"),
    ],
)
def test_types_are_shown_as_they_are_written(kind: Any, name: str) -> None:
    assert name_of(kind) == name
