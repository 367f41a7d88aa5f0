from __future__ import annotations

from experiments.common.cells import p_value, percent


def test_percent() -> None:
    assert [percent(share) for share in (0.124, 0.99, 0.9912, 1.0)] == [
        "12.4",
        "99.0",
        "99.12",
        "100.00",
    ]


def test_p_values() -> None:
    values = (None, 1.0, 0.0213, 0.00016, 1e-30)
    assert [p_value(value) for value in values] == ["", "1", "0.021", "2e-4", "< 1e-16"]
