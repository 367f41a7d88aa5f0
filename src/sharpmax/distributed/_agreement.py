"""Make sure that all ranks ask for the same before they depend on each other.

Ranks that disagree would wait for messages that never come. Before the first collective of a call,
every rank sends a hash of its settings and its lengths. All see all of them, so all raise, or none.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sharpmax._errors import SharpmaxError
from sharpmax.distributed._ranks import Ranks
from sharpmax.policies import Policy

_agreed: weakref.WeakSet[Any] = weakref.WeakSet()
"""Process groups whose ranks have agreed once."""


class RanksDisagreeError(SharpmaxError, ValueError):
    """Say that the ranks of a group were called with different settings, and which."""


def agree(
    ranks: Ranks,
    settings: dict[str, Any],
    lengths: Sequence[int],
    device: torch.device,
    error: Exception | None,
    known: Sequence[Sequence[int]] | None,
) -> list[list[int]]:
    """Return the lengths of all ranks, once all have the same settings.

    Args:
        ranks: the ranks.
        settings: what has to be the same everywhere.
        lengths: those of this rank.
        device: where messages of this group are kept.
        error: what is wrong with the arguments of this rank.
        known: the lengths of all ranks, if the caller knows them. Then the ranks are asked only
            once per process group.

    Raises:
        RanksDisagreeError: on every rank, if any has other settings or an error of its own.
    """
    if known is not None and ranks.group in _agreed:
        if error is not None:
            raise error
        return [list(each) for each in known]
    hashed = hashlib.blake2b(repr(sorted(settings.items())).encode(), digest_size=8).digest()
    number = int.from_bytes(hashed, "little", signed=True)
    own = torch.tensor([number, int(error is not None), *lengths], device=device)
    found: list[list[int]] = torch.stack(ranks.gathered(own)).tolist()
    if any(each[1] for each in found):
        messages = ranks.gathered_objects(None if error is None else f"{error}")
        if error is not None:
            raise error
        raise RanksDisagreeError(other_errors(messages))
    if len({each[0] for each in found}) > 1:
        check_same(ranks.gathered_objects(settings))
    _agreed.add(ranks.group)
    return [each[2:] for each in found]


def describe(policy: Policy | None) -> str:
    """Return all that has to be the same of a policy."""
    return "None" if policy is None else repr(policy.to_dict())


def on_device(tensor: Tensor, ranks: Ranks) -> torch.device:
    """Return where the messages of the group have to be: NCCL sends only from GPUs."""
    if dist.get_backend(ranks.group) == "gloo":
        return torch.device("cpu")
    return tensor.device


def other_errors(messages: Sequence[str | None]) -> str:
    """Describe the errors of ranks, in the order of the ranks, to one that has none."""
    wrong = "; ".join(f"rank {n}: {text}" for n, text in enumerate(messages) if text is not None)
    return f"sharpmax.distributed: another rank cannot go on: {wrong}"


def check_same(settings: Sequence[dict[str, Any]]) -> None:
    """Raise `RanksDisagreeError` unless the settings of all ranks are the same."""
    names = [name for name in settings[0] if len({repr(each.get(name)) for each in settings}) > 1]
    if not names:
        return
    parts = []
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, each in enumerate(settings):
            values.setdefault(str(each.get(name)), []).append(rank)
        shown = ", ".join(f"{value} on {_named(where)}" for value, where in values.items())
        parts.append(f"{name}: {shown}")
    raise RanksDisagreeError(
        f"sharpmax.distributed: expected the same on all ranks, got {'; '.join(parts)}"
    )


def _named(ranks: list[int]) -> str:
    few = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
    return f"rank {few}" if len(ranks) == 1 else f"ranks {few}"
