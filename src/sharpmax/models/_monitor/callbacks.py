"""Callbacks of trainers, which measure the steps of a monitor."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sharpmax._extras import available, require

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from sharpmax.models._monitor.monitor import Monitor


class _Open:
    """The step that is under way, for callbacks that begin and end it in two calls."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor, self._stack = monitor, ExitStack()

    def begin(self, step: int) -> None:
        self.end()
        self._stack.enter_context(self.monitor.step(step))

    def end(self) -> None:
        self._stack.close()

    def abandon(self) -> None:
        """End a step that failed, without a reading."""
        self.monitor.stop()
        self._stack.pop_all()


def hugging_face_callback(monitor: Monitor) -> TrainerCallback:
    """Return a callback for the Trainer of transformers."""
    from transformers import TrainerCallback

    opened = _Open(monitor)

    class HuggingFaceCallback(TrainerCallback):
        """Measure the steps of the Trainer of transformers."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control, kwargs
            opened.begin(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, state, kwargs
            due = control.should_log
            opened.end()
            # A writer that logs through the Trainer would cancel the Trainer's own log of this
            # step.
            control.should_log = due

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            del args, state, control, kwargs
            if logs and "loss" in logs:
                monitor.loss(float(logs["loss"]))

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, state, control, kwargs
            opened.end()

    return HuggingFaceCallback()


def lightning_callback(monitor: Monitor) -> Any:
    """Return a callback for the Trainer of Lightning."""
    name = "pytorch_lightning" if not available("lightning") else "lightning.pytorch"
    base: Any = require(name, extra="monitor", what="a callback of Lightning").Callback
    opened = _Open(monitor)

    class LightningCallback(base):  # type: ignore[misc]
        """Measure the steps of the Trainer of Lightning."""

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            opened.begin(trainer.global_step)

        def on_train_batch_end(self, _: Any, __: Any, outputs: Any, *___: Any) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                monitor.loss(loss)
            opened.end()

        def on_exception(self, *_: Any) -> None:
            opened.abandon()

    return LightningCallback()
