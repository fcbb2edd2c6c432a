"""The report of `leasehold pipeline`. Its commands are tested in tests/spark."""

from __future__ import annotations

from leasehold.cli.pipeline import facts


def test_a_total_and_a_state_with_the_same_name_are_both_printed() -> None:
    report = {
        "leased": 2381,
        "dead_letters": 81,
        "per_second": 13.150876527552242,
        "wait_p50": 0.126,
        "service_p50": None,
        "now": {"leased": 0, "dead": 81},
    }
    assert facts(report) == {
        "leased": 2381,
        "dead letters": 81,
        "per second": "13.2",
        "wait p50": "126 ms",
        "service p50": None,
        "leased at the end": 0,
        "dead at the end": 81,
    }
