"""The rules of alarms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sharpmax
from sharpmax.models import Alarm, AlarmRules, AttentionWarning, HeadReading
from sharpmax.models._monitor.alarms import Judge

NORMAL = HeadReading(0, "attention", 0, 2.0, 0.6, 10.0, 0.1)
RULES = AlarmRules(patience=2, warm_up=10)


def _judged(
    heads: list[HeadReading], losses: list[float | None], rules: AlarmRules = RULES, start: int = 10
) -> list[tuple[str, int]]:
    judge = Judge(rules)
    found = []
    for number, (head, loss) in enumerate(zip(heads, losses, strict=True)):
        alarms = judge.judge(start + number, loss, [head])
        found += [(alarm.kind, alarm.step) for alarm in alarms]
    return found


FALLING: list[float | None] = [4.0, 3.5, 3.0, 2.6, 2.2, 1.8]
STALLED: list[float | None] = [3.0] * 6
COLLAPSED = replace(NORMAL, entropy=0.05)


def test_collapse_needs_a_low_entropy_and_a_loss_that_stalls() -> None:
    assert _judged([COLLAPSED] * 6, STALLED) == [("collapse", 14)]
    assert _judged([COLLAPSED] * 6, FALLING) == []
    assert _judged([NORMAL] * 6, STALLED) == []
    assert _judged([COLLAPSED] * 6, [None] * 6) == []
    assert _judged([COLLAPSED] * 6, [3.0, 3.0, *[math.nan] * 4]) == [("collapse", 13)]
    assert _judged([replace(COLLAPSED, sink_mass=0.9)] * 6, STALLED) == []
    without_losses = replace(RULES, stall=None)
    assert _judged([COLLAPSED] * 6, [None] * 6, without_losses) == [("collapse", 11)]


def test_dispersion_needs_patience_and_comes_after_the_warm_up() -> None:
    dispersed = replace(NORMAL, normalised_entropy=0.99)
    assert _judged([dispersed] * 6, FALLING) == [("dispersion", 11)]
    assert _judged([dispersed, NORMAL] * 3, FALLING) == []
    assert _judged([dispersed] * 6, FALLING, start=5) == []


def test_an_alarm_is_given_again_only_after_its_rule_ceased_to_hold() -> None:
    exploded = replace(NORMAL, largest_logit=101.0)
    heads = [exploded, exploded, NORMAL, exploded, NORMAL, NORMAL]
    assert _judged(heads, FALLING, start=0) == [("explosion", 0), ("explosion", 3)]


@pytest.mark.parametrize("logit", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_is_an_explosion(logit: float) -> None:
    assert _judged([replace(NORMAL, largest_logit=logit)], [None]) == [("explosion", 10)]


def test_an_empty_head_is_no_reason_for_alarm() -> None:
    empty = HeadReading(0, "attention", 0, math.nan, math.nan, -math.inf, math.nan)
    assert _judged([empty] * 6, STALLED) == []


def test_rules_are_checked() -> None:
    with pytest.raises(ValueError, match="patience: expected at least 1, got 0"):
        AlarmRules(patience=0)


class _Attention(nn.Module):
    def forward(self, query: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, query, query)


def test_alarms_are_warnings_or_calls() -> None:
    query = torch.eye(4).expand(1, 5, 4, 4) * 20
    watched = sharpmax.monitor(_Attention())
    expected = r"explosion in head 0 of _Attention at step 0: largest logit 200; .*, and 2 more"
    with pytest.warns(AttentionWarning, match=expected), watched.step():
        watched._way.model(query)
    assert len(watched.alarms) == 5

    calls: list[Alarm] = []
    watched = sharpmax.monitor(_Attention(), on_alarm=calls.append)
    with watched.step():
        watched._way.model(query)
    assert calls == watched.alarms
    assert {alarm.value for alarm in calls} == {200.0}
