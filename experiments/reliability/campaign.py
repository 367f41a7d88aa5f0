"""A campaign: cases by number, tallied by kind and implementation; it can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from experiments.reliability.cases import Case, make_case
from experiments.reliability.compare import Outcome, check
from sharpmax import kernels
from sharpmax._attention.api import IMPLEMENTATIONS
from sharpmax._files import check_settings, machine, read_sealed, versions, write_sealed

__all__ = ["Campaign", "Tally", "part"]

KIND = "reliability campaign, format 1"

_OTHERS = 7
"""Every so many cases go through all implementations, the others through `cpu` alone."""


def _compared(case: Case, only: Sequence[str]) -> list[str]:
    """The implementations that a case goes through; compiling the others takes minutes."""
    if only:
        return list(only)
    every = case.index % _OTHERS == 0 and case.kind != "compiled"
    return [name for name in IMPLEMENTATIONS if every or name == "cpu"]


@dataclass
class Tally:
    """Counts of one kind of case and one implementation.

    Attributes:
        cases: How many it served.
        refused: How many it does not serve, and says so.
        rows: Rows, or gradients, that were compared.
        undecided: Those that their precision cannot decide.
    """

    cases: int = 0
    refused: int = 0
    rows: int = 0
    undecided: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count the outcome of a case."""
        if outcome.refused:
            self.refused += 1
            return
        self.cases += 1
        self.rows += outcome.rows
        self.undecided += outcome.undecided


@dataclass
class Campaign:
    """The cases 0 … done - 1 of a seed.

    Attributes:
        seed: Of the cases.
        done: How many were tried.
        tallies: Counts by kind, then by implementation. Cases that are wrong are not in them.
        worst: The largest error over its tolerance: by kind, implementation, policy and dtype.
        wrong: The cases that are wrong, by number: reason by implementation, and a description.
        mended: Cases that were wrong and are not any more, likewise.
        only: The implementations that all cases go through; none means the usual choice.
        instructions: The vector instructions that the CPU kernels chose, of every run.
    """

    seed: int
    done: int = 0
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    worst: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict)
    wrong: dict[str, dict[str, Any]] = field(default_factory=dict)
    mended: dict[str, dict[str, Any]] = field(default_factory=dict)
    only: list[str] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list, compare=False)

    def advance(self, until: int) -> Iterator[Case]:
        """Try the cases up to number `until`, and yield those that are wrong.

        Example:
            >>> campaign = Campaign(seed=17)
            >>> list(campaign.advance(2)), campaign.done
            ([], 2)
        """
        while self.done < until:
            case = make_case(self.seed, self.done)
            found = self._try(case)
            self.done += 1
            if found:
                yield case

    def add(self, other: Campaign) -> None:
        """Add the cases that follow, which another campaign tried.

        Example:
            >>> campaign, whole = Campaign(seed=17), Campaign(seed=17)
            >>> for start in (0, 2):
            ...     campaign.add(part(17, (), 2, 3, start))
            >>> _ = list(whole.advance(3))
            >>> campaign == whole
            True
        """
        self.done = other.done
        self.wrong |= other.wrong
        for kind, tallies in other.tallies.items():
            for name, tally in tallies.items():
                mine = self.tallies.setdefault(kind, {}).setdefault(name, Tally())
                for each in fields(Tally):
                    setattr(mine, each.name, getattr(mine, each.name) + getattr(tally, each.name))
        for kind, by_name in other.worst.items():
            for name, by_policy in by_name.items():
                known = self.worst.setdefault(kind, {}).setdefault(name, {})
                for policy, by_dtype in by_policy.items():
                    before = known.setdefault(policy, {})
                    for dtype, ratio in by_dtype.items():
                        before[dtype] = max(ratio, before.get(dtype, 0.0))

    def retry(self) -> None:
        """Try the wrong cases again, after something was mended."""
        for number, before in list(self.wrong.items()):
            if not self._try(make_case(self.seed, int(number))):
                self.mended[number] = before
                del self.wrong[number]

    def _try(self, case: Case) -> bool:
        """Tally a case, unless it is wrong."""
        outcomes = check(case, _compared(case, self.only))
        reasons = {name: outcome.reason for name, outcome in outcomes.items() if outcome.wrong}
        if reasons:
            self.wrong[str(case.index)] = {"reasons": reasons, **case.describe()}
            return True
        for name, outcome in outcomes.items():
            self.tallies.setdefault(case.kind, {}).setdefault(name, Tally()).add(outcome)
            if outcome.refused:
                continue
            by_policy = self.worst.setdefault(case.kind, {}).setdefault(name, {})
            by_dtype = by_policy.setdefault(case.policy[0], {})
            ratio = float(f"{outcome.worst:.3g}")
            by_dtype[case.dtype] = max(ratio, by_dtype.get(case.dtype, 0.0))
        return False

    def save(self, path: Path, command: str) -> Path:
        """Write the campaign with the command and the versions behind it, sealed."""
        if not self.only or "cpu" in self.only:
            self.instructions = sorted({*self.instructions, kernels.instructions()})
        made = {"command": command, "versions": versions(("torch",)), "machine": machine()}
        return write_sealed(path, KIND, made | asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            DamagedFileError: The file is truncated, was edited, or is another kind of file.
        """
        data = read_sealed(path, KIND)
        data["tallies"] = {
            kind: {name: Tally(**each) for name, each in found.items()}
            for kind, found in data["tallies"].items()
        }
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})

    @classmethod
    def resume(cls, path: Path, seed: int, only: Sequence[str] = ()) -> Self:
        """Read the campaign to continue; a new one if there is no file.

        Raises:
            SettingsChangedError: The file has another seed, or other implementations.
        """
        if not path.exists():
            return cls(seed, only=list(only))
        found = cls.load(path)
        now = {"seed": seed, "only": list(only)}
        check_settings({"seed": found.seed, "only": found.only}, now, path)
        return found


def part(
    seed: int,
    only: Sequence[str],
    size: int,
    cases: int,
    start: int,
    tell: Callable[[Any], None] = lambda _: None,  # noqa: ARG001  (a part takes seconds)
) -> Campaign:
    """Try up to `size` of the `cases` of a seed, from number `start`, as a campaign of its own."""
    campaign = Campaign(seed, start, only=list(only))
    list(campaign.advance(min(start + size, cases)))
    return campaign
