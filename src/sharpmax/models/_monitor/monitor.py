"""Watch the attention of a model while it trains."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from sharpmax._attention import SinkRole
from sharpmax.models._handle import Sharpened
from sharpmax.models._monitor.alarms import Alarm, AlarmRules, Judge
from sharpmax.models._monitor.callbacks import hugging_face_callback, lightning_callback
from sharpmax.models._monitor.readings import Reading, Sums
from sharpmax.models._monitor.writers import writer_of
from sharpmax.models._open import open_model

if TYPE_CHECKING:
    from transformers import TrainerCallback

Batch = TypeVar("Batch")


class AttentionWarning(UserWarning):
    """Names the heads for which an alarm rule began to hold."""


def monitor(
    model: nn.Module,
    every: int = 100,
    *,
    rules: AlarmRules | None = None,
    writer: Any = None,
    on_alarm: Callable[[Alarm], None] | None = None,
    sink_role: SinkRole = "key",
) -> Monitor:
    """Watch entropy, largest logit and sink mass of every head while a model trains.

    One step in `every` is measured, over all rows of all its passes. The model is untouched in all
    other steps. In a measured step, attention is computed by PyTorch's
    `scaled_dot_product_attention`, and gradients are those of the model.

    Iterate over batches with `Monitor.over`, wrap each step in `Monitor.step`, or use a callback:
    `Monitor.hugging_face()` or `Monitor.lightning()`.

    Args:
        model: a transformers model, a module that contains one, or any other PyTorch module.
        every: number of steps from one reading to the next.
        rules: when to give an alarm; None for the default values of `AlarmRules`.
        writer: receives every reading: a `SummaryWriter` of TensorBoard; a run of Weights & Biases;
            or a function of the scalars, by name, and the step.
        on_alarm: called with each alarm; None: one `AttentionWarning` per reading with alarms.
        sink_role: role of a learned sink, as in `sharpmax.sharpen`.

    Returns:
        The monitor, whose `readings` and `alarms` grow as the model trains.

    Raises:
        CannotSharpenError: no attention layer can be reached.
        TypeError, ValueError: names the argument, what was expected and what came.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> monitor = sharpmax.monitor(model, every=2)
        >>> for tokens in monitor.over(torch.randint(99, (4, 1, 32))):
        ...     loss = model(tokens, labels=tokens).loss
        ...     loss.backward()
        ...     optimizer.step()
        ...     monitor.loss(loss)
        >>> [reading.step for reading in monitor.readings]
        [0, 2]
        >>> round(monitor.readings[0].heads[3].normalised_entropy, 2)
        1.0
    """
    if every < 1:
        raise ValueError(f"every: expected a number of steps, 1 or more, got {every!r}")
    return Monitor(model, every, rules or AlarmRules(), writer, on_alarm, sink_role)


class Monitor:
    """The attention of a model in training; `sharpmax.monitor` makes it.

    Attributes:
        every: number of steps from one reading to the next.
        rules: when an alarm is given.
        readings: what was measured so far.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int,
        rules: AlarmRules,
        writer: Any,
        on_alarm: Callable[[Alarm], None] | None,
        sink_role: SinkRole,
    ) -> None:
        self.every, self.rules = every, rules
        self.readings: list[Reading] = []
        self._way, self._sink_role = open_model(model), sink_role
        self._write = None if writer is None else writer_of(writer)
        self._on_alarm, self._judge = on_alarm, Judge(rules)
        self._steps = 0
        # One handle for all steps: compiled code is valid for the objects that it has seen.
        self._sums = Sums()
        self._recording: Sharpened | None = None
        self._loss: Tensor | float = 0.0
        self._losses = 0

    @property
    def alarms(self) -> list[Alarm]:
        """All alarms so far."""
        return [alarm for reading in self.readings for alarm in reading.alarms]

    @contextmanager
    def step(self, number: int | None = None) -> Iterator[bool]:
        """Measure the passes of the model in a `with` block, if it is the turn of this step.

        The block holds the forward and backward passes of one step of the optimizer.

        Args:
            number: number of the step; None counts from 0.

        Yields:
            Whether this step is measured.
        """
        number = self._steps if number is None else number
        self._steps = number + 1
        due = number % self.every == 0 and (not self.readings or self.readings[-1].step != number)
        if not due:
            yield False
            return
        self._start()
        try:
            yield True
        finally:
            self.stop()
        if heads := self._sums.heads(self._way.layers):
            self._add(Reading(number, self._mean_loss(), heads))

    def over(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches; the body of the loop is one step of training."""
        for batch in batches:
            with self.step():
                yield batch

    def loss(self, value: Tensor | float) -> None:
        """Tell the loss of a step, for the alarm about collapse; this does not wait for a GPU."""
        self._loss = self._loss + (value.detach() if isinstance(value, Tensor) else value)
        self._losses += 1

    def hugging_face(self) -> TrainerCallback:
        """Return a callback for the `Trainer` of transformers.

        To write with the loggers of the Trainer, pass
        `writer=lambda scalars, step: trainer.log(scalars)` to `sharpmax.monitor`.
        """
        return hugging_face_callback(self)

    def lightning(self) -> Any:
        """Return a callback for the `Trainer` of Lightning.

        To write with the loggers of the Trainer, pass
        `writer=lambda scalars, step: trainer.logger.log_metrics(scalars, step)`.

        Raises:
            MissingExtraError: Lightning is not installed.
        """
        return lightning_callback(self)

    def stop(self) -> None:
        """End the measurement of the current step, without a reading."""
        if self._recording is not None:
            self._recording.restore()

    def _start(self) -> None:
        self._sums.clear()
        if self._recording is None:
            options: Any = {"observe": self._sums.observe, "sink_role": self._sink_role}
            self._recording = Sharpened(self._way, **options)
        else:
            self._recording.resume()

    def _mean_loss(self) -> float | None:
        if not self._losses:
            return None
        mean = float(self._loss) / self._losses
        self._loss, self._losses = 0.0, 0
        return mean

    def _add(self, reading: Reading) -> None:
        alarms = self._judge.judge(reading.step, reading.loss, reading.heads)
        reading = replace(reading, alarms=alarms)
        self.readings.append(reading)
        if self._write is not None:
            self._write(reading)
        for alarm in alarms if self._on_alarm is not None else ():
            self._on_alarm(alarm)  # type: ignore[misc]
        if alarms and self._on_alarm is None:
            more = f", and {len(alarms) - 3} more heads" if len(alarms) > 3 else ""
            text = "; ".join(map(str, alarms[:3])) + more
            warnings.warn(text, AttentionWarning, stacklevel=5)
