"""The first cases of the campaign; `make fuzz` runs as many as you like."""

from __future__ import annotations

import pytest

from campaign.cases import Kind, make_case
from campaign.compare import check


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("kind", "cases"), [("forward", 200), ("statistics", 200), ("gradient", 60)]
)
def test_no_row_and_no_gradient_is_wrong(impl: str, kind: Kind, cases: int) -> None:
    compared = 0
    for index in range(cases if impl == "cpu" else cases // 3):
        outcome = check(make_case(kind, 17, index), impl)
        assert not outcome.wrong, f"{outcome.reason}: {outcome.case}"
        compared += outcome.rows
    assert compared > cases
