"""Telemetry is switched on and off for the whole process, and needs OpenTelemetry only then."""

from __future__ import annotations

import sys

import pytest

from leasequeue import telemetry
from leasequeue.errors import ExtraMissing


def is_on() -> bool:
    return telemetry.active is not None


def test_it_is_off_until_it_is_switched_on_and_after_it_is_switched_off() -> None:
    assert not is_on()
    telemetry.instrument()
    assert is_on()
    telemetry.uninstrument()
    assert not is_on()


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "leasequeue.telemetry.instruments", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ExtraMissing, match=r'pip install "leasequeue\[telemetry\]"'):
        telemetry.instrument()
    assert not is_on()
