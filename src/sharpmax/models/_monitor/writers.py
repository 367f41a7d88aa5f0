"""Write readings with the loggers of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharpmax.models._monitor.readings import Reading

Write = Callable[[Reading], None]


def writer_of(logger: Any) -> Write:
    """Return a function that writes readings to a logger of TensorBoard or Weights & Biases.

    Args:
        logger: a `SummaryWriter`; a run of Weights & Biases; or a function of the scalars, by name,
            and the step.

    Raises:
        TypeError: it is none of these.
    """
    if hasattr(logger, "add_scalar"):
        return lambda reading: _to_tensorboard(logger, reading)
    if hasattr(logger, "define_metric"):
        # An axis of its own: steps of a run only grow, and others log to it as well.
        logger.define_metric("attention/*", step_metric="attention/step")
        return lambda reading: logger.log(reading.to_scalars() | {"attention/step": reading.step})
    if callable(logger):
        return lambda reading: logger(reading.to_scalars(), reading.step)
    raise TypeError(
        "writer: expected a SummaryWriter, a run of Weights & Biases, or a function of scalars and "
        f"step, got {type(logger).__name__}"
    )


def _to_tensorboard(logger: Any, reading: Reading) -> None:
    for name, value in reading.to_scalars().items():
        logger.add_scalar(name, value, reading.step)
    for alarm in reading.alarms:
        logger.add_text("attention/alarm", str(alarm), reading.step)
