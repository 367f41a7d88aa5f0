from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sharpmax
from model_families import BY_NAME, result, shared
from sharpmax._files import write_sealed
from sharpmax.models import Calibration, DamagedFileError, LayerCalibration, OtherModelError
from sharpmax.models._rule import changed
from sharpmax.policies import Constant, Exponential, Hard, Identity

LLAMA = BY_NAME["llama"]
PER_HEAD = Exponential([0.5, 0.6, 0.7, 0.8], strength=[1.0, 0.0, 1.0, 0.5])


def made(**facts: Any) -> Calibration:
    facts = {
        "lengths": [64, 512],
        "objective": "nats per token",
        "before": 3.5,
        "after": 3.25,
        "split_sizes": {"fit": 20, "select": 10},
        "notes": {"text": "random tokens"},
        **facts,
    }
    return Calibration.of(
        shared("llama"), {0: PER_HEAD, 1: None}, gains={1: [1.0, 0.5, 2.0, 1.0]}, **facts
    )


def test_of_a_model() -> None:
    calibration = made()
    assert (calibration.model_type, calibration.head_counts) == ("llama", (4, 4))
    assert {"sharpmax", "python", "torch", "transformers"} <= calibration.versions.keys()
    assert calibration.layers == (
        LayerCalibration(0, PER_HEAD),
        LayerCalibration(1, None, (1.0, 0.5, 2.0, 1.0)),
    )


def test_round_trip(tmp_path: Path) -> None:
    calibration = made()
    path = calibration.save(tmp_path / "deep" / "llama.json")
    assert Calibration.load(path) == calibration
    assert Calibration.load(path, shared("llama")) == calibration
    assert Calibration.from_dict(json.loads(calibration.to_json())) == calibration
    assert json.loads(path.read_text("utf-8"))["kind"] == Calibration.FORMAT


def test_parameters_that_learned_are_saved_as_numbers(tmp_path: Path) -> None:
    reference = torch.tensor([0.5, 1.0, 1.5, 2.0], requires_grad=True)
    calibration = Calibration.of(shared("llama"), {0: Exponential(reference)})
    (layer,) = Calibration.load(calibration.save(tmp_path / "c.json")).layers
    assert layer.policy == Exponential([0.5, 1.0, 1.5, 2.0])


def test_sharpening_applies_temperature_and_gain_to_each_head() -> None:
    model, inputs = LLAMA.build(), LLAMA.inputs()
    outputs: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, x: outputs.append(x[0]))
    with torch.no_grad(), sharpmax.sharpen(model, {0: PER_HEAD}):
        result(model, **inputs)
    with torch.no_grad(), sharpmax.sharpen(model, made()) as sharpened:
        result(model, **inputs)
        rows = sharpened.status()
    plain_first, plain_second, first, second = (x.unflatten(-1, (4, -1)) for x in outputs)
    assert torch.equal(first, plain_first)
    gain = torch.tensor([1.0, 0.5, 2.0, 1.0])
    torch.testing.assert_close(second, plain_second * gain[:, None])
    assert [row.policy for row in rows] == [PER_HEAD, None]
    assert [row.gain for row in rows] == [None, (1.0, 0.5, 2.0, 1.0)]
    assert [row.why_not for row in rows] == [None, None]


def test_an_empty_one_leaves_the_model_alone() -> None:
    model, inputs = shared("llama"), LLAMA.inputs()
    before = result(model, **inputs)
    with sharpmax.sharpen(model, Calibration.of(model, {})):
        assert torch.equal(result(model, **inputs), before)


def test_a_summary_tells_what_changes() -> None:
    assert made().summary().splitlines() == [
        "llama: 5 of 8 heads change",
        "nats per token: 3.5000 → 3.2500 (-0.2500)",
    ]
    figures = {"before": 2.0, "after": 2.01, "interval": [0.004, 0.016]}
    test = {"objective": {"interval": [-0.3, -0.2]}, "text": figures}
    told = made(notes={"family": "entropy+gain", "tolerance": 0.02, "test": test})
    first, objective, guard = told.summary().splitlines()
    assert first == "llama, entropy+gain: 5 of 8 heads change"
    assert objective.endswith("3.2500 (-0.2500, 95% interval -0.3000 to -0.2000)")
    assert guard.startswith("loss on ordinary text: 2.0000 → 2.0100 (+0.0100, 95% interval +0.0040")
    assert guard.endswith("to +0.0160), tolerance 0.02")
    empty = Calibration.of(shared("llama"), {}, notes={"family": "gain"})
    assert empty.summary() == "llama, gain: no change helped; leave this model unchanged"


@pytest.mark.parametrize(
    ("policy", "gain", "expected"),
    [
        (None, None, 0),
        (Identity(), None, 0),
        (Constant(2.0), None, 4),
        (Constant([2.0, 1.0, 0.9995002498750625, 0.5]), None, 2),
        (Constant([2.0, 1.0, 1.0, 1.0]), [1.0, 1.0, 1.0, 0.9], 2),
        (Exponential(1.0, strength=[0.0, 1e-4, 0.0, 1.0]), None, 2),
        (Exponential(1.0, strength=torch.ones(4, requires_grad=True)), None, 4),
        (Hard(), None, 4),
    ],
)
def test_heads_that_are_left_alone_do_not_count(policy: Any, gain: Any, expected: int) -> None:
    assert changed(policy, gain, 4) == expected


def test_other_models_are_refused() -> None:
    calibration = made()
    with pytest.raises(OtherModelError, match=r"type 'llama' .*got 'qwen2'.*; use the model"):
        sharpmax.sharpen(shared("qwen2"), calibration)
    with pytest.raises(OtherModelError, match="2 attention layers, LlamaForCausalLM has 3; use"):
        calibration.check(LLAMA.build(num_hidden_layers=3))
    with pytest.raises(OtherModelError, match="in layer 0, LlamaForCausalLM has 8; use the model"):
        calibration.check(LLAMA.build(num_attention_heads=8))
    # The same layers behind another head of the model.
    calibration.check(shared("llama").model)


def test_another_name_is_told() -> None:
    model = LLAMA.build()
    model.config._name_or_path = "someone/small"
    calibration = Calibration.of(model, {0: Hard()})
    model.config._name_or_path = "elsewhere/small"
    calibration.check(model)
    model.config._name_or_path = "someone/large"
    with pytest.warns(
        UserWarning, match="made for 'someone/small' and is used for 'someone/large'; unless these"
    ):
        calibration.check(model)


def test_layers_and_heads_come_from_the_file_alone() -> None:
    with pytest.raises(ValueError, match="layers, heads: expected None with a calibration"):
        sharpmax.sharpen(shared("llama"), made(), layers=[0])


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = made().save(tmp_path / "c.json")
    text = path.read_text("utf-8")
    for damaged, said in [
        (text[:200], "truncated or damaged .*; copy it again"),
        (text.replace("3.25", "1.25"), "changed after it was written"),
        (
            text.replace(Calibration.FORMAT, "sharpmax calibration 9"),
            "file of kind .*; give another",
        ),
    ]:
        path.write_text(damaged, "utf-8")
        with pytest.raises(DamagedFileError, match=said):
            Calibration.load(path)
    # Sealed, but by something that writes other fields or policies.
    for change in ({"layers": [{"index": 0}]}, {"new": 1}, {"head_counts": []}):
        write_sealed(path, Calibration.FORMAT, made().to_dict() | change)
        with pytest.raises(
            DamagedFileError, match=r"expected a calibration, got data .*; run the command"
        ):
            Calibration.load(path)


def test_what_cannot_be_a_calibration() -> None:
    with pytest.raises(ValueError, match="each layer once"):
        Calibration("", "llama", (4,), (LayerCalibration(0), LayerCalibration(0)))
    with pytest.raises(ValueError, match=r"indices from 0 to 0, got \[1\]"):
        Calibration("", "llama", (4,), (LayerCalibration(1),))
    with pytest.raises(ValueError, match="gain: expected finite factors"):
        LayerCalibration(0, gain=(float("nan"),))
    with pytest.raises(ValueError, match=r"Exponential.reference: .* 4 query heads"):
        sharpmax.sharpen(shared("llama"), Calibration.of(shared("llama"), {0: Exponential([1, 2])}))
