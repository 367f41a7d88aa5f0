"""Callbacks of trainers, and the loggers of others."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import sharpmax
from sharpmax.models import Monitor


def _model() -> Any:
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _data(count: int) -> list[dict[str, torch.Tensor]]:
    rows = torch.randint(32, (count, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


def _read(model: Any, **options: Any) -> Monitor:
    watched = sharpmax.monitor(model, **options)
    with watched.step(7):
        model(_data(1)[0]["input_ids"][None])
    return watched


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    model = _model()
    written: list[int] = []

    def write(scalars: dict[str, float], step: int) -> None:
        written.append(step)
        trainer.log(scalars)

    watched = sharpmax.monitor(model, every=2, writer=write)
    arguments = TrainingArguments(
        str(tmp_path), max_steps=5, per_device_train_batch_size=1, gradient_accumulation_steps=2,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=_data(10),
        callbacks=[watched.hugging_face()],
    )  # fmt: skip
    trainer.train()
    assert [reading.step for reading in watched.readings] == written == [0, 2, 4]
    history = trainer.state.log_history
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert watched.readings[1].loss == pytest.approx(sum(losses[:2]) / 2)
    shown = [entry for entry in history if "attention/lowest_entropy" in entry]
    assert [entry["attention/lowest_entropy"] for entry in shown] == [
        min(head.entropy for head in reading.heads) for reading in watched.readings
    ]
    sharpmax.sharpen(model, sharpmax.policies.Constant(1.1)).restore()  # nothing is attached


def test_the_trainer_of_lightning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Lightning imports, and its advice
        lightning: Any = pytest.importorskip("lightning.pytorch")

        class Module(lightning.LightningModule):  # type: ignore[misc]
            def __init__(self, model: Any) -> None:
                super().__init__()
                self.model = model

            def training_step(self, batch: Any) -> Any:
                return self.model(**batch).loss

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        module = Module(_model())
        watched = sharpmax.monitor(module, every=2)
        trainer = lightning.Trainer(
            max_steps=5, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
            callbacks=[watched.lightning()], barebones=False,
        )  # fmt: skip
        trainer.fit(module, DataLoader(_data(5), batch_size=1))
    assert [reading.step for reading in watched.readings] == [0, 2, 4]
    assert all(reading.loss is not None and reading.loss > 1 for reading in watched.readings)
    sharpmax.sharpen(module, sharpmax.policies.Constant(1.1)).restore()  # nothing is attached


def test_tensorboard(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter
    with SummaryWriter(str(tmp_path)) as writer:  # type: ignore[no-untyped-call]
        watched = _read(_model(), every=7, writer=writer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = watched.readings[0].to_scalars()
    assert set(events.Tags()["scalars"]) == set(scalars)
    assert len(scalars) == 3 + 2 * 4
    for name, value in scalars.items():
        assert [(e.step, e.value) for e in events.Scalars(name)] == [(7, pytest.approx(value))]


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wandb: Any = pytest.importorskip("wandb")
        with wandb.init(mode="offline", dir=tmp_path) as run:
            run.log({"other": 1.0}, step=50)  # steps of the run are ahead of those of the training
            watched = _read(_model(), every=7, writer=run)
            kept = dict(run.summary)
    for name, value in watched.readings[0].to_scalars().items():
        assert kept[name] == pytest.approx(value)
    assert kept["attention/step"] == 7
