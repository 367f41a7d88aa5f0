"""Share work on many items among the ranks of a process group; in one process, do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

if TYPE_CHECKING:
    from sharpmax.distributed._ranks import Ranks

Item = TypeVar("Item")
Found = TypeVar("Found")


class Share:
    """The ranks that do some work together, or one process.

    In `lockstep`, every rank works on every item, because the model needs all ranks for each.
    """

    def __init__(self, ranks: Ranks | None = None, *, lockstep: bool = False) -> None:
        self._ranks, self._divided = ranks, ranks is not None and not lockstep
        self.rank, self.size = (0, 1) if ranks is None else (ranks.rank, ranks.size)

    @property
    def first(self) -> bool:
        """Whether this is the rank that shows progress and writes files."""
        return self.rank == 0

    @property
    def divided(self) -> bool:
        """Whether ranks work on different items."""
        return self._divided

    def own(self, count: int) -> range:
        """Return which of some items this rank works on: consecutive ones, first ranks the most."""
        if not self._divided:
            return range(count)
        each, more = divmod(count, self.size)
        start = self.rank * each + min(self.rank, more)
        return range(start, start + each + (self.rank < more))

    def of_all(self, done: float, count: int) -> float:
        """Return how many of `count` items are done, if all ranks are as far as this one."""
        return done if not self._divided else count * done / max(len(self.own(count)), 1)

    def map(self, function: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        """Return what a function gives for each item, on every rank in the order of the items.

        Raises:
            RanksDisagreeError: the function raised on another rank, or another rank has another
                number of items. On the rank where the function raised, that error.
        """
        count = len(items)
        parts = self.gathered(lambda: [function(items[n]) for n in self.own(count)], count)
        return [found for part in parts for found in part]

    def gathered(self, compute: Callable[[], Found], alike: Any = None) -> list[Found]:
        """Return what all ranks compute, in their order; `alike` has to be the same on all."""
        return self._exchanged(compute, alike) if self._divided else [compute()]

    def once(self, function: Callable[[], Found]) -> Found:
        """Return on every rank what a function gives on the first one, which alone calls it."""
        if self._ranks is None:
            return function()
        found: list[Any] = self._exchanged(function if self.first else lambda: None, None)
        return found[0]  # type: ignore[no-any-return]

    def agree(self, **settings: Any) -> None:
        """Raise `RanksDisagreeError` on every rank unless all have the same settings."""
        if self._ranks is not None:
            from sharpmax.distributed._agreement import check_same

            check_same(self._ranks.gathered_objects(settings))

    def _exchanged(self, compute: Callable[[], Any], alike: Any) -> list[Any]:
        from sharpmax.distributed._agreement import RanksDisagreeError, check_same, other_errors

        assert self._ranks is not None
        value = error = message = None
        try:
            value = compute()
        except Exception as problem:  # noqa: BLE001  (the other ranks wait for an answer)
            error, message = problem, str(problem) or type(problem).__name__
        values, likes, messages = zip(
            *self._ranks.gathered_objects((value, alike, message)), strict=True
        )
        if error is not None:
            raise error
        if any(messages):
            raise RanksDisagreeError(other_errors(messages))
        check_same([{"items": each} for each in likes])
        return [value if rank == self.rank else each for rank, each in enumerate(values)]


def share_of(*, lockstep: bool) -> Share:
    """Return the ranks of the default process group, or one process if there is none.

    `lockstep`: the weights of the model are spread over ranks.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Share()
    from sharpmax.distributed._alone import is_alone
    from sharpmax.distributed._ranks import Ranks

    return Share() if is_alone() else Share(Ranks(None, None), lockstep=lockstep)


def digest(items: Iterable[Any]) -> tuple[int, int]:
    """Return the number of some items, and what depends on their tokens, as far as they have any.

    It is the same in every process.
    """
    tokens = [tuple(getattr(item, "ids", ())) for item in items]
    return len(tokens), hash(tuple(tokens))
