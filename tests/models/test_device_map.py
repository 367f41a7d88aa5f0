"""Models whose layers are on several devices: on the processor and, as meta tensors, on the disk.

accelerate brings a layer to its device for a pass, as it does between GPUs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import model_calls
import sharpmax

PLACES = {
    "model.embed_tokens": "disk",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The model in one place, and in several."""
    folder = tmp_path_factory.mktemp("model")
    model_calls.llama().save_pretrained(folder / "saved")
    options: dict[str, Any] = {"device_map": PLACES, "offload_folder": folder / "disk"}
    spread = AutoModelForCausalLM.from_pretrained(folder / "saved", **options).eval()
    assert {weight.device.type for weight in spread.parameters()} == {"cpu", "meta"}
    return model_calls.llama(), spread


def test_heads_get_their_own_parameters(models: tuple[Any, Any]) -> None:
    ids, found = model_calls.tokens(2, 24), []
    for model in models:
        reference = torch.tensor([0.2, 0.5, 0.9, 1.3], requires_grad=True)
        with sharpmax.sharpen(model, sharpmax.policies.Exponential(reference)) as handle:
            logits = model(ids).logits
            logits.square().mean().backward()
            assert all(row.why_not is None for row in handle.status())
        assert reference.grad is not None
        found.append((logits.detach(), reference.grad, model(ids).logits.detach()))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(found[0][0], found[0][2], atol=0.1)


def test_verbs(models: tuple[Any, Any]) -> None:
    one, spread = (model_calls.verbs(model) for model in models)
    assert "quantised, sharded or offloaded" in spread["fold"]
    for verb in ("diagnose", "calibrate", "evaluate"):
        assert_same(spread[verb], one[verb])


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Assert that results are equal but for the folder that a model was loaded from."""
    for each in (ours, theirs):
        each.pop("model_name", None)
        each.get("settings", {}).pop("model", None)
    assert ours == theirs
