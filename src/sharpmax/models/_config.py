"""The name of the attention in a configuration: changed once, restored when no model needs it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

NAME = "sharpmax"  # of the attention and of its masks; transformers matches substrings of names
# For models with eager attention, where the mask alone decides what is visible: some do not say
# that they are causal, and some add biases to their masks.
MASKED = f"{NAME}_masked"
NAMES = (NAME, MASKED)
SETTING = "_attn_implementation_internal"  # where a configuration keeps its attention's name


@dataclass(eq=False)
class Hold:
    """A configuration, which models may share: the last one that is restored puts it back."""

    config: Any
    original: Any
    holders: int = 0

    _all: ClassVar[dict[int, Hold]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @staticmethod
    def take(config: Any) -> Hold:
        """Store the setting of a configuration, unless another model has stored it."""
        with Hold._lock:
            hold = Hold._all.setdefault(id(config), Hold(config, config.__dict__[SETTING]))
            hold.holders += 1
            return hold

    def release(self) -> None:
        """Restore the original if no other model holds the configuration."""
        with Hold._lock:
            self.holders -= 1
            if self.holders == 0:
                del Hold._all[id(self.config)]
                self.config.__dict__[SETTING] = self.original
