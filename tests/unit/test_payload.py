"""Payloads are decoded into the type of an annotation, with and without pydantic."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from leasequeue import InvalidArgument, Item
from leasequeue.errors import PayloadError
from leasequeue.item import MAX_DATA_BYTES
from leasequeue.worker.payload import decoder, encode_result
from tests.worker.models import Mail, Opaque, Order, Parcel

if TYPE_CHECKING:
    from leasequeue import Lease


@dataclass
class Other:
    name: str


def read(annotation: Any, data: bytes) -> Any:
    return decoder(annotation)(cast("Lease", Item(data, id="the-id")))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pydantic not importable: only what `pip install leasequeue` brings is there."""
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.split(".", maxsplit=1)[0] == "pydantic":
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, b"x", "x"),
        (Any, b"[null]", [None]),
        (dict, b'{"a":1}', {"a": 1}),
        (list, b"[1]", [1]),
        (int, b"1", 1),
        (float, b"1", 1),
        (float, b"1.5", 1.5),
        (bool, b"true", True),
        (list[int], b"[1]", [1]),
        (int | None, b"null", None),
        (Order, b'{"number":1,"lines":["x"]}', Order(1, ["x"])),
        (Parcel, b'{"weight":3}', Parcel(3)),
    ],
)
def test_all_but_pydantic_models_need_nothing_installed(annotation: Any, data: bytes, value: Any) -> None:
    assert read(annotation, data) == value


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("annotation", "data"),
    [
        (int, b"true"),
        (int, b"1.5"),
        (bool, b"1"),
        (dict, b"[]"),
        (list, b"{}"),
        (float, b"true"),
        (int, b"x"),
    ],
)
def test_plain_types_are_checked(annotation: Any, data: bytes) -> None:
    with pytest.raises(PayloadError):
        read(annotation, data)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("annotation", [Opaque, Order | Other])
def test_other_types_are_rejected(annotation: Any) -> None:
    with pytest.raises(InvalidArgument, match="JSON"):
        decoder(annotation)


def test_pydantic_reads_types_that_the_codec_does_not_know() -> None:
    assert read(Order | Other, b'{"name":"x"}') == Other("x")


@pytest.mark.parametrize("annotation", [Opaque, list[Opaque], dict[str, Opaque]])
def test_a_type_that_no_library_can_decode_is_rejected(annotation: Any) -> None:
    with pytest.raises(InvalidArgument, match="JSON"):
        decoder(annotation)


@pytest.mark.parametrize(
    ("annotation", "data", "wanted"),
    [
        (Mail, b"{}", "Mail"),
        (Parcel, b"{}", "Parcel"),
        (int | None, b'"x"', "int | None"),
        (str, b"\xff", "str"),
    ],
)
def test_an_error_names_the_item_and_the_wanted_type(annotation: Any, data: bytes, wanted: str) -> None:
    with pytest.raises(PayloadError) as raised:
        read(annotation, data)
    error = raised.value
    assert (error.item_id, error.wanted) == ("the-id", wanted)
    assert error.problem
    assert error.__cause__ is not None


@pytest.mark.parametrize("data", [b"", b"{", b"nul", b"[" * 100_000])
@pytest.mark.parametrize("annotation", [Any, dict, list[int], Mail, Parcel])
def test_every_payload_that_does_not_parse_raises_a_payload_error(annotation: Any, data: bytes) -> None:
    with pytest.raises(PayloadError):
        read(annotation, data)


@pytest.mark.parametrize("value", [object(), float("inf"), b"x" * (MAX_DATA_BYTES + 1)])
def test_results_that_cannot_be_encoded_raise_an_error(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode_result(value)
