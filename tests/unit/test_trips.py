"""The division of rows into trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.queue.encoding import TRIP_BYTES, TRIP_ROWS, trips

HALF = TRIP_BYTES // 2


@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [
        ([], []),
        ([1], [(0, 1)]),
        ([TRIP_BYTES * 9], [(0, 1)]),
        ([HALF, HALF], [(0, 2)]),
        ([HALF, HALF, 1], [(0, 2), (2, 3)]),
        ([1, TRIP_BYTES], [(0, 1), (1, 2)]),
        ([TRIP_BYTES, 1], [(0, 1), (1, 2)]),
        ([1, TRIP_BYTES * 9, 1], [(0, 1), (1, 2), (2, 3)]),
        ([1] * TRIP_ROWS, [(0, TRIP_ROWS)]),
        ([1] * (TRIP_ROWS + 1), [(0, TRIP_ROWS), (TRIP_ROWS, TRIP_ROWS + 1)]),
        ([0] * (2 * TRIP_ROWS), [(0, TRIP_ROWS), (TRIP_ROWS, 2 * TRIP_ROWS)]),
    ],
    ids=lambda value: f"{len(value)} of {sum(value)}" if value and isinstance(value[0], int) else "",
)
def test_a_trip_ends_at_500_rows_or_a_mebibyte(sizes: list[int], cuts: list[tuple[int, int]]) -> None:
    assert [*trips(sizes)] == cuts


@given(st.lists(st.integers(min_value=0, max_value=TRIP_BYTES * 2), max_size=50))
def test_every_row_is_sent_once_in_order_and_trips_are_full(sizes: list[int]) -> None:
    cuts = [*trips(sizes)]
    assert [row for start, stop in cuts for row in range(start, stop)] == [*range(len(sizes))]
    for start, stop in cuts:
        assert stop - start == 1 or sum(sizes[start:stop]) <= TRIP_BYTES
        if stop < len(sizes):
            assert sum(sizes[start : stop + 1]) > TRIP_BYTES
