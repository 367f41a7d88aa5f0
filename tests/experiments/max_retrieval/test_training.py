from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.max_retrieval.evaluation import Streamed, accuracy
from experiments.max_retrieval.recipe import Recipe
from experiments.max_retrieval.task import NearTies
from experiments.max_retrieval.training import (
    Progress,
    Training,
    load_heads,
    train,
    weights_path,
)
from sharpmax._files import DamagedFileError, SettingsChangedError

_SMALL = Recipe(steps=160, batch=16, width=16, schedule="cosine", ties=NearTies())

_PROGRAM = """
import sys
from pathlib import Path
from experiments.max_retrieval.recipe import Recipe
from experiments.max_retrieval.training import train
from experiments.max_retrieval.task import NearTies
recipe = Recipe(steps=160, batch=16, width=16, schedule="cosine", ties=NearTies())
train(recipe, [0, 4], Path(sys.argv[1]), keep=[100], every=0.0,
      on_progress=lambda progress: print(progress.step, flush=True))
"""


def test_killed_and_started_again_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "killed")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "50\n"
        program.send_signal(signal.SIGKILL)
    assert program.returncode == -signal.SIGKILL
    assert not weights_path(tmp_path / "killed", 160).exists()

    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.split()[-1] == "160"
    assert int(again.stdout.split()[0]) > 50, "it went on"
    train(_SMALL, [0, 4], tmp_path / "undisturbed", keep=[100])
    for step in (100, 160):
        for kind in ("last", "averaged"):
            one, _ = load_heads(weights_path(tmp_path / "killed", step), kind)
            other, _ = load_heads(weights_path(tmp_path / "undisturbed", step), kind)
            for name, tensor in one.state_dict().items():
                assert torch.equal(tensor, other.state_dict()[name]), (step, kind, name)


def test_a_head_learns_the_task(tmp_path: Path) -> None:
    reports: list[Progress] = []
    recipe = Recipe(steps=400, width=64)
    path = train(recipe, [0, 1], tmp_path, on_progress=reports.append)
    assert reports[0].loss > 2 * reports[-1].loss
    assert [report.step for report in reports] == list(range(50, 401, 50))
    heads, restored = load_heads(path, "last")
    assert restored == recipe
    softmax = {"softmax": [lambda logits, _: torch.softmax(logits, -1)]}
    for index in range(2):
        assert accuracy(Streamed(heads.alone(index)), softmax, 16, 256)["softmax"] > 0.6


def test_averaged_weights_are_the_moving_average_of_the_iterates() -> None:
    training = Training(Recipe(steps=30, batch=8, width=8, averaging=0.9), [2])
    average = training.heads.v.detach().clone()
    for _ in training.run(30):
        average = 0.9 * average + 0.1 * training.heads.v.detach()
    torch.testing.assert_close(training.averaged["v"], average)


def test_a_cosine_falls_to_zero_and_decay_shrinks() -> None:
    training = Training(Recipe(steps=100, batch=8, width=8, schedule="cosine"), [0])
    moves = [training.heads.v.detach().clone() for _ in training.run(100)]
    first, last = (moves[1] - moves[0]).abs().max(), (moves[-1] - moves[-2]).abs().max()
    assert last < 0.01 * first

    def norm(recipe: Recipe) -> float:
        training = Training(recipe, [0])
        for _ in training.run(60):
            pass
        return float(training.heads.output_in.detach().norm())

    plain = norm(Recipe(steps=60, batch=8, width=8, weight_decay=0.0))
    for decoupled in (False, True):
        recipe = Recipe(steps=60, batch=8, width=8, weight_decay=0.5, decoupled=decoupled)
        assert norm(recipe) < plain


def test_a_seed_learns_the_same_in_other_company() -> None:
    recipe = Recipe(steps=60, batch=16, width=16)
    together, alone = Training(recipe, [3, 8]), Training(recipe, [8])
    for _ in together.run(60):
        pass
    for _ in alone.run(60):
        pass
    for name, tensor in alone.averaged.items():
        torch.testing.assert_close(together.averaged[name][1:], tensor, rtol=1e-3, atol=1e-4)


def test_going_on_with_other_settings_is_refused(tmp_path: Path) -> None:
    recipe = Recipe(steps=4, batch=8, width=8)
    train(recipe, [0], tmp_path)
    with pytest.raises(SettingsChangedError, match="began with recipe"):
        train(Recipe(steps=4, batch=8, width=8, learning_rate=0.1), [0], tmp_path)
    with pytest.raises(SettingsChangedError, match=r"began with seeds \[0\], not \[1\]"):
        train(recipe, [1], tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    recipe = Recipe(steps=4, batch=8, width=8)
    path = train(recipe, [0], tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(DamagedFileError, match="the file is truncated or not from sharpmax"):
        train(recipe, [0], tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match="the file is truncated or not from sharpmax"):
        load_heads(path, "last")


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path) -> None:
    recipe = Recipe(steps=200, batch=8, width=8, learning_rate=1e30)
    with pytest.raises(FloatingPointError, match="the loss is nan at step"):
        train(recipe, [0], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"steps": 0}, "steps: expected"), ({"smallest": 20}, "smallest: expected from 1 to largest")],
)
def test_bad_recipes_are_refused(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe(**arguments)
