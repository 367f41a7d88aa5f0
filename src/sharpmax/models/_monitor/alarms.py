"""When the attention of a head is a reason for alarm."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sharpmax.models._monitor.readings import HeadReading

AlarmKind = Literal["collapse", "dispersion", "explosion"]


@dataclass(frozen=True)
class Alarm:
    """A head for which a rule holds.

    Attributes:
        kind: "collapse", "dispersion" or "explosion".
        step: the step in which the rule began to hold.
        layer: index of the layer.
        name: name of its module.
        head: index of the query head.
        value: the entropy in nats, the normalised entropy or the largest logit, by kind.
    """

    kind: AlarmKind
    step: int
    layer: int
    name: str
    head: int
    value: float

    def __str__(self) -> str:
        """Say which head it is, and why."""
        what = {
            "collapse": f"entropy {self.value:.2g} nats while the loss stalls",
            "dispersion": f"entropy {self.value:.1%} of log n",
            "explosion": f"largest logit {self.value:.3g}",
        }[self.kind]
        return f"{self.kind} in head {self.head} of {self.name} at step {self.step:,}: {what}"


@dataclass(frozen=True)
class AlarmRules:
    """When a head is a reason for alarm.

    A rule has to hold in `patience` consecutive readings, except for an explosion, which counts at
    once. An alarm is given when a rule begins to hold.

    Attributes:
        collapse: the mean entropy is below this, in nats, the sink mass is below one half, and the
            loss stalls. Heads that rest on a sink have a low entropy and are no reason for alarm.
        stall: the loss stalls if its mean over the last `patience` readings is not lower by this
            share than over the `patience` readings before, or if it is not finite. Without losses,
            it never stalls. None: a low entropy suffices.
        dispersion: the normalised entropy is above this.
        explosion: the largest logit is above this, or not finite. 100 is the bound of QK-clip in
            Kimi K2 (arXiv 2507.20534).
        patience: number of readings.
        warm_up: no collapse or dispersion before this step: heads of new models are dispersed.
    """

    collapse: float = 0.1
    stall: float | None = 0.01
    dispersion: float = 0.98
    explosion: float = 100.0
    patience: int = 3
    warm_up: int = 1000

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience: expected at least 1, got {self.patience}")


class Judge:
    """Apply rules to readings in order; an alarm is given once while its rule holds."""

    def __init__(self, rules: AlarmRules) -> None:
        self.rules = rules
        self._losses: deque[float] = deque(maxlen=2 * rules.patience)
        self._held: dict[tuple[AlarmKind, int, int], int] = {}  # readings in a row

    def judge(
        self, step: int, loss: float | None, heads: Iterable[HeadReading]
    ) -> tuple[Alarm, ...]:
        """Return the alarms that begin with a reading."""
        if loss is not None:
            self._losses.append(loss)
        rules, stalls, found = self.rules, self._stalls(), []
        late = step >= rules.warm_up
        for each in heads:
            collapsed = each.entropy < rules.collapse and each.sink_mass < 0.5
            exploded = not (math.isfinite(each.largest_logit) or each.largest_logit == -math.inf)
            cases: tuple[tuple[AlarmKind, bool, float, int], ...] = (
                ("collapse", late and stalls and collapsed, each.entropy, rules.patience),
                (
                    "dispersion",
                    late and each.normalised_entropy > rules.dispersion,
                    each.normalised_entropy,
                    rules.patience,
                ),
                (
                    "explosion",
                    exploded or each.largest_logit > rules.explosion,
                    each.largest_logit,
                    1,
                ),
            )
            for kind, holds, value, patience in cases:
                place = (kind, each.layer, each.head)
                self._held[place] = self._held.get(place, 0) + 1 if holds else 0
                if self._held[place] == patience:
                    found.append(Alarm(kind, step, each.layer, each.name, each.head, value))
        return tuple(found)

    def _stalls(self) -> bool:
        if self.rules.stall is None:
            return True
        losses, patience = list(self._losses), self.rules.patience
        if losses and not math.isfinite(losses[-1]):
            return True
        if len(losses) < 2 * patience:
            return False
        before, after = sum(losses[:patience]), sum(losses[patience:])
        return not after < before - self.rules.stall * abs(before)
