"""The first 2,000 cases of the campaign; `make fuzz` runs as many as you like."""

from __future__ import annotations

import types

import pytest

from experiments.reliability import oracle
from experiments.reliability.campaign import Campaign
from experiments.reliability.cases import KINDS, Kind, make_case
from experiments.reliability.compare import check
from sharpmax._attention.api import IMPLEMENTATIONS
from sharpmax._attention.impl import reference


@pytest.mark.parametrize("start", range(0, 2000, 500))
def test_no_row_and_no_gradient_is_wrong(start: int) -> None:
    campaign = Campaign(17, start)
    for case in campaign.advance(start + 500):
        pytest.fail(str(campaign.wrong[str(case.index)]))
    assert set(campaign.tallies) == set(KINDS)
    assert campaign.tallies["forward"]["cpu"].rows > 10_000
    assert not any(kind["cpu"].refused for kind in campaign.tallies.values())


@pytest.mark.parametrize("kind", ["forward", "odd", "gradient"])
def test_the_comparison_finds_small_errors(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    slightly_sharper = types.SimpleNamespace(
        unsupported=reference.unsupported,
        measure=reference.measure,
        temper=reference.temper,
        attend=lambda problem, beta, **options: reference.attend(problem, 1.01 * beta, **options),
    )
    monkeypatch.setitem(IMPLEMENTATIONS, "slightly sharper", slightly_sharper)
    cases = (make_case(17, index) for index in range(1000))
    some = [each for each in cases if each.kind == kind and each.dtype == "float32"][:12]
    wrong = [check(case, ["slightly sharper"])["slightly sharper"].wrong for case in some]
    assert sum(number > 0 for number in wrong) >= len(some) // 3


def test_the_oracle_shares_no_code_with_the_library() -> None:
    imported = [value for value in vars(oracle).values() if isinstance(value, types.ModuleType)]
    homes = {getattr(value, "__module__", "") or "" for value in vars(oracle).values()}
    names = {module.__name__ for module in imported} | homes
    assert not any(name.startswith("sharpmax") for name in names)
