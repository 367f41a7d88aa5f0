from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.clrs_text.recipe import Attention, Recipe
from experiments.clrs_text.training import Progress, Training, load_trained, train, weighted_loss
from experiments.common.checkpoint import read_tensors
from sharpmax._files import DamagedFileError, SettingsChangedError

_SMALL = Recipe(
    {"minimum": (4, 6), "quicksort": (4, 6)},
    steps=24, batch=4, warmup=4, layers=2, heads=2, width=32, hidden=32,
)  # fmt: skip


def test_killed_and_started_again_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe = replace(_SMALL, attention="ssmax")
    steps: list[int] = []

    def on_progress(at: Progress) -> None:
        steps.append(at.step)
        if steps == [10]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, 5, tmp_path / "killed", every=0.0, on_progress=on_progress)
    assert not (tmp_path / "killed" / "weights.safetensors").exists()
    train(recipe, 5, tmp_path / "killed", on_progress=on_progress)
    assert steps == [10, 20, 24], "it went on"
    train(recipe, 5, tmp_path / "undisturbed")
    one, other = (
        load_trained(tmp_path / name / "weights.safetensors") for name in ("killed", "undisturbed")
    )
    assert one.tokens == other.tokens
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert torch.equal(one.attention.scales[1], other.attention.scales[1])
    assert not torch.equal(one.attention.scales[1], one.attention.scales[0])


@pytest.mark.parametrize("attention", ["softmax", "paper"])
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_the_loss_falls(attention: Attention, optimiser: str) -> None:
    recipe = replace(
        _SMALL,
        lengths={"minimum": (4, 4)},
        attention=attention,
        optimiser=optimiser,
        learning_rate=1e-2,
        fixed=False,
    )
    losses = list(Training(recipe, 0).run(recipe.steps))
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_all_attentions_begin_alike_and_see_the_same() -> None:
    first = {
        name: next(Training(replace(_SMALL, attention=name), 0).run(1))
        for name in ("softmax", "ssmax", "paper")
    }
    # The weights and the examples are the same, and the attention is another.
    assert len(set(first.values())) == 3
    assert max(first.values()) < 1.1 * min(first.values())


def test_progress_and_refusals(tmp_path: Path) -> None:
    reports: list[Progress] = []
    recipe = replace(_SMALL, steps=12)
    weights = train(recipe, 0, tmp_path, on_progress=reports.append)
    assert [(at.step, at.steps) for at in reports] == [(10, 12), (12, 12)]
    assert all(at.speed > 0 for at in reports)
    train(recipe, 0, tmp_path, on_progress=lambda _: pytest.fail("trained again"))
    with pytest.raises(SettingsChangedError, match="has seed 0, not 1"):
        train(recipe, 1, tmp_path)
    with pytest.raises(SettingsChangedError, match="has recipe"):
        train(replace(recipe, batch=5), 0, tmp_path)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(DamagedFileError):
        load_trained(weights)


def test_long_answers_count_by_the_root_of_their_length() -> None:
    logits = torch.zeros(5, 8)
    targets = torch.tensor([[1, 2, 3, 4], [5, -100, -100, -100]])
    assert weighted_loss(logits, targets).item() == pytest.approx(3 * torch.log(torch.tensor(8.0)))


def test_averaged_weights_survive_a_stop(tmp_path: Path) -> None:
    recipe = Recipe(
        {"minimum": (4, 4)}, steps=6, batch=4, warmup=1, layers=1, heads=2, width=16, hidden=16,
        averaging=0.9,
    )  # fmt: skip
    whole, first = Training(recipe, 0), Training(recipe, 0)
    list(whole.run(6))
    list(first.run(3))
    first.save(tmp_path / "checkpoint.safetensors")
    second = Training.load(tmp_path / "checkpoint.safetensors", recipe, 0)
    list(second.run(6))
    for number, training in enumerate((whole, second)):
        training.save_weights(tmp_path / f"{number}.safetensors")
    one, two = (read_tensors(tmp_path / f"{number}.safetensors")[1] for number in range(2))
    last = {f"last.{name}": p for name, p in whole._parameters().items()}
    assert one.keys() == last.keys()
    for name, average in one.items():
        assert torch.equal(average, two[name])
    assert any(not torch.equal(average, last[name]) for name, average in one.items())
