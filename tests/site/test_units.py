"""Numbers as people read them."""

from __future__ import annotations

import pytest

from docs.figures.units import bytes_text, count_text, significant, time_text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (significant(0), "0"),
        (significant(1234.5), "1,230"),
        (significant(0.012345, 2), "0.012"),
        (significant(-2.5), "-2.5"),
        (significant(100), "100"),
        (bytes_text(270_000_000), "270 MB"),
        (bytes_text(999), "999 B"),
        (bytes_text(999_999), "1 MB"),
        (time_text(12_300_000), "12.3 ms"),
        (time_text(90e9), "90 s"),
        (count_text(4.2e9), "4.2 G"),
        (count_text(7), "7"),
    ],
)
def test_text(shown: str, expected: str) -> None:
    assert shown == expected
