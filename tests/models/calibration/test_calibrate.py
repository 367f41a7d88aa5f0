from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import sharpmax
from model_families import BY_NAME
from sharpmax.models import Calibration, CannotSharpenError, Splits, Window, answer, calibrate
from sharpmax.models._calibration.calibrate import Stage, references
from sharpmax.models._calibration.fit import Term
from sharpmax.models._calibration.objectives import text_loss
from sharpmax.models._handle import Sharpened
from sharpmax.models._hugging_face import HuggingFace
from sharpmax.tasks import Question

HEADS, WIDTH = 4, 16


def _model(seed: int = 0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=HEADS * WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        initializer_range=0.15,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def _rows(head: int) -> slice:
    return slice(head * WIDTH, (head + 1) * WIDTH)


def _spoilt(layer: int, head: int, factor: float) -> LlamaForCausalLM:
    """The model with the logits of one head multiplied by a factor."""
    model = _model()
    with torch.no_grad():
        model.model.layers[layer].self_attn.q_proj.weight[_rows(head)] *= factor
    return model


def _windows(length: int = 24) -> Splits[Window]:
    torch.manual_seed(1)
    ids = torch.randint(64, (24, length)).tolist()
    drawn = [Window(tuple(row), context) for context, row in enumerate(ids)]
    return Splits(drawn[:8], drawn[8:16], drawn[16:])


class Teacher:
    """How far the next tokens are from those of the model as it was before."""

    def __init__(self) -> None:
        self.model = _model().requires_grad_(False)

    def __call__(self, model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
        losses = []
        for window in windows:
            ids = torch.tensor([window.ids])
            theirs = self.model(input_ids=ids).logits[0].log_softmax(-1)
            ours = model(input_ids=ids).logits[0].log_softmax(-1)
            losses.append(F.kl_div(ours, theirs, log_target=True, reduction="batchmean"))
        return torch.stack(losses)


def _fit(model: LlamaForCausalLM, **options: Any) -> Calibration:
    settings: dict[str, Any] = {
        "tolerance": float("inf"),
        "steps": 40,
        "learning_rate": 0.1,
        "shrink": 1e-6,
        **options,
    }
    return calibrate(model, _windows(), Teacher(), **settings)


def test_a_head_that_was_flattened_is_found_and_mended() -> None:
    calibration = _fit(_spoilt(1, 2, 0.5))
    betas = {
        (layer.index, head): float(beta)
        for layer in calibration.layers
        for head, beta in enumerate(layer.policy.beta)
    }
    assert betas[1, 2] == pytest.approx(2.0, rel=0.1)
    assert all(beta < 1.2 for place, beta in betas.items() if place != (1, 2))
    assert calibration.after is not None
    assert calibration.before is not None
    assert calibration.after < 0.1 * calibration.before
    low, high = calibration.notes["test"]["objective"]["interval"]
    assert low < calibration.after - calibration.before < high < 0


def test_a_head_that_was_sharpened_is_flattened_only_if_that_is_asked_for() -> None:
    assert _fit(_spoilt(0, 1, 2.0)).notes["flatten"] is False
    calibration = _fit(_spoilt(0, 1, 2.0), flatten=True)
    (layer,) = [layer for layer in calibration.layers if layer.index == 0]
    assert layer.policy.beta[1] == pytest.approx(0.5, rel=0.1)


def test_a_gain_is_found_and_is_no_temperature() -> None:
    model = _model()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, _rows(3)] *= 0.5
    calibration = _fit(model, family="gain")
    gains = {layer.index: layer.gain for layer in calibration.layers}
    assert gains[1][3] == pytest.approx(2.0, rel=0.1)
    assert all(layer.policy is None for layer in calibration.layers)


def test_a_fit_is_checked_on_a_part_of_the_second_split_alone() -> None:
    seen: list[tuple[int, ...]] = []

    class Watched(Teacher):
        def __call__(self, model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
            if not torch.is_grad_enabled():
                seen.append(windows[0].ids)
            return super().__call__(model, windows)

    steps: list[Stage] = []
    early = calibrate(
        _spoilt(1, 2, 0.5), _windows(), Watched(), tolerance=float("inf"), steps=40,
        learning_rate=0.1, shrink=1e-6, check_every=4, on_progress=steps.append,
    )  # fmt: skip
    checks = early.notes["checks"]
    done = [stage.step for stage in steps if stage.name == "fit"][-1]
    assert done == checks[-1][0] < 40
    # Two of the eight windows, before anything else is measured.
    asked = [window.ids for window in _windows().select[::4]]
    assert seen[: 2 * len(checks)] == asked * len(checks)
    whole = _fit(_spoilt(1, 2, 0.5))
    assert whole.notes["checks"] == []
    (betas,) = (layer.policy.beta for layer in early.layers if layer.index == 1)
    assert betas[2] == pytest.approx(2.0, rel=0.15)
    low, high = whole.notes["test"]["objective"]["interval"]
    assert low < early.notes["test"]["objective"]["change"] < high


@pytest.mark.parametrize("family", ["constant", "entropy", "gain", "constant+gain"])
def test_where_there_is_nothing_to_gain_nothing_is_changed(family: str) -> None:
    calibration = _fit(_model(), family=family, steps=3)
    assert calibration.layers == ()
    assert calibration.before == calibration.after
    assert calibration.notes["select"]["chosen"] is None


def test_what_raises_the_loss_on_ordinary_text_is_not_kept() -> None:
    class Spoiler(Teacher):
        """Wants the logits to be far from what they were, which cannot be good for text."""

        def __call__(self, model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
            return -super().__call__(model, windows)

    def teacher_text(text: Splits[Window]) -> Splits[Window]:
        """Text that the model itself finds likely, so that any change makes it less so."""
        model = _model()

        def own(window: Window) -> Window:
            start = torch.tensor([window.ids[:4]])
            ids = model.generate(start, max_new_tokens=20, do_sample=False)[0]
            return Window(tuple(ids.tolist()), window.context, first=4)

        return Splits(*([own(w) for w in split] for split in (text.fit, text.select, text.test)))

    text = teacher_text(_windows())
    free = calibrate(
        _model(), _windows(), Spoiler(), tolerance=float("inf"), steps=20, learning_rate=0.2
    )
    assert free.layers
    guarded = calibrate(
        _model(), _windows(), Spoiler(), text=text, tolerance=0.0, steps=20, learning_rate=0.2,
        text_weight=0.0,
    )  # fmt: skip
    rises = [candidate["rise"] for candidate in guarded.notes["select"]["candidates"]]
    assert min(rises) > 0
    assert guarded.layers == ()


def test_the_model_is_as_it_was() -> None:
    model = _spoilt(1, 2, 0.5)
    model.train()
    model.model.embed_tokens.weight.requires_grad_(False)
    ids = torch.arange(12)[None]
    before = model(ids).logits
    wanted = {name: weight.requires_grad for name, weight in model.named_parameters()}
    _fit(model, steps=2)
    assert torch.equal(model(ids).logits, before)
    assert {name: w.requires_grad for name, w in model.named_parameters()} == wanted
    assert all(module.training for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
    assert all(weight.grad is None for weight in model.parameters())


def test_it_is_left_as_it_was_after_an_error() -> None:
    model = _model()

    def fails(*_: object) -> Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        calibrate(model, _windows(), fails, tolerance=float("inf"))
    assert model.config._attn_implementation == "sdpa"
    sharpmax.sharpen(model, sharpmax.policies.Constant(2.0)).restore()


def test_the_reference_of_the_entropy_is_that_of_the_model() -> None:
    model, windows = _model(), _windows().fit
    with Sharpened(HuggingFace(model)) as sharpened:
        found = references(sharpened, Term(text_loss, windows, 1))
        assert sharpened.active
    measured = sharpmax.diagnose(model, [list(window.ids) for window in windows], lengths=[12, 24])
    for record in measured.records:
        if record.length == 24:
            assert record.entropy is not None
            mean = float(found[record.layer][record.head])
            assert mean == pytest.approx(record.entropy.mean, abs=1e-5)


def test_text_is_an_objective_and_progress_is_told() -> None:
    said: list[Stage] = []
    calibration = calibrate(_model(), _windows(), steps=2, on_progress=said.append)
    assert calibration.objective == "nats per token"
    assert calibration.lengths == (24,)
    assert calibration.notes["own_temperatures"] == []
    names = [stage.name for stage in said]
    assert list(dict.fromkeys(names)) == ["fit", "select", "test"]
    assert names[:3] + names[-2:] == ["fit", "fit", "select", "test", "test"]
    assert all(stage.step <= stage.steps for stage in said)
    assert said[1].step == 2
    assert len(said[0].losses) == 1


def _asked(model: LlamaForCausalLM, count: int) -> list[Question]:
    """Questions whose answers are what a model says."""
    torch.manual_seed(2)
    found = []
    for context in range(count):
        ids = torch.randint(64, (1, 12))
        said = model.generate(ids, max_new_tokens=2, do_sample=False)[0, 12:]
        found.append(Question(tuple(ids[0].tolist()), "", tuple(said.tolist()), 0, context, 0.5))
    return found


def test_exact_answers_choose_heads_that_are_fitted_by_their_probabilities() -> None:
    asked = _asked(_model(), 120)
    data = Splits(asked[:40], asked[40:80], asked[80:])
    model = _spoilt(1, 2, 0.2)
    options: dict[str, Any] = {
        "tolerance": float("inf"), "steps": 40, "learning_rate": 0.1, "shrink": 1e-6,
    }  # fmt: skip
    found = calibrate(model, data, "exact", **options)
    assert found.objective == "share of wrong answers"
    wrong = sum(not each.exact for each in answer(model, data.test)) / len(data.test)
    assert found.before == pytest.approx(wrong)
    with sharpmax.sharpen(model, found):
        left = sum(not each.exact for each in answer(model, data.test)) / len(data.test)
    assert found.after == pytest.approx(left)
    assert left < wrong
    # What is chosen by is the share; what heads do is still told in nats.
    gains = [candidate["gain"] for candidate in found.notes["select"]["candidates"]]
    assert all(round(40 * gain) == pytest.approx(40 * gain) for gain in gains)
    by_nats = calibrate(model, data, "answers", **options)
    assert by_nats.notes["select"]["contributions"] == found.notes["select"]["contributions"]
    assert by_nats.before != found.before


def test_a_calibration_is_saved_and_applied(tmp_path: Any) -> None:
    model = _spoilt(1, 2, 0.5)
    calibration = _fit(model, family="constant+gain")
    path = calibration.save(tmp_path / "calibration.json")
    loss = Teacher()
    windows = _windows().test
    with torch.no_grad(), sharpmax.sharpen(model, Calibration.load(path, model)):
        after = float(loss(model, windows).mean())
    assert after == pytest.approx(calibration.after, rel=1e-3)


@pytest.mark.parametrize("family", ["entropy", "entropy+gain"])
def test_the_entropy_rule_is_fitted_and_saved(family: str, tmp_path: Any) -> None:
    model = _spoilt(1, 2, 0.5)
    calibration = _fit(model, family=family, steps=10)
    assert any(layer.policy is not None for layer in calibration.layers)
    assert calibration.after is not None
    assert calibration.before is not None
    assert calibration.after < calibration.before
    loaded = Calibration.load(calibration.save(tmp_path / "calibration.json"), model)
    assert loaded.to_dict() == calibration.to_dict()


def test_one_context_alone_is_no_reason_and_is_saved_as_well(tmp_path: Any) -> None:
    same = [Window(window.ids, 0) for window in _windows().fit]
    options: dict[str, Any] = {"tolerance": float("inf"), "steps": 5, "learning_rate": 0.1}
    calibration = calibrate(_spoilt(1, 2, 0.5), Splits(same, same, same), Teacher(), **options)
    assert calibration.layers == ()
    candidates = calibration.notes["select"]["candidates"]
    assert candidates
    assert {candidate["certain"] for candidate in candidates} == {None}
    calibration.save(tmp_path / "calibration.json")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (Tensor.detach, ValueError, "expected losses with a gradient, got no"),
        (Tensor.mean, ValueError, r"one loss per item, shape \(1,\), got shape \(\)"),
        (lambda losses: losses[:, None], ValueError, r"shape \(1,\), got shape \(1, 1\)"),
        (
            Tensor.tolist,
            TypeError,
            "objective: expected a floating-point tensor of losses, got list",
        ),
        (Tensor.long, TypeError, r"a floating-point tensor of losses, got torch\.int64"),
    ],
)
def test_an_objective_that_gives_something_else_is_told_what_to_give(
    change: Any, error: type[Exception], match: str
) -> None:
    teacher = Teacher()

    def objective(model: PreTrainedModel, windows: Sequence[Window]) -> Any:
        return change(teacher(model, windows))

    with pytest.raises(error, match=match):
        calibrate(_model(), _windows(), objective, tolerance=float("inf"), steps=1)


def test_only_what_is_measured_by_tokens_needs_a_causal_language_model() -> None:
    encoder = BY_NAME["bert"].build()

    def length(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
        ids = torch.tensor([[token % 40 for token in window.ids] for window in windows])
        states: Tensor = model(input_ids=ids).last_hidden_state
        return states.square().mean((1, 2))

    options: dict[str, Any] = {"tolerance": float("inf"), "steps": 2}
    found = calibrate(encoder, _windows(), length, **options)
    assert found.objective == "length"
    for objective, text in (("text", None), ("answers", None), (length, _windows())):
        with pytest.raises(CannotSharpenError, match="BertModel: expected a causal language model"):
            calibrate(encoder, _windows(), objective, text=text, **options)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"objective": "words"}, ValueError, "objective: expected 'text'"),
        ({"objective": "answers"}, ValueError, "text: expected windows of ordinary text"),
        ({"family": "both"}, ValueError, "family: expected one of constant"),
        ({"family": "entropy", "flatten": True}, ValueError, "flatten: expected False"),
        ({"data": [1, 2]}, TypeError, "data: expected Splits"),
        ({"steps": 0}, ValueError, "steps: expected at least 1, got 0"),
        ({"tolerance": float("nan")}, ValueError, "tolerance: expected at least 0, got nan"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate: expected a number above 0"),
        ({"data": _windows(3000)}, ValueError, "at most the 2048 positions of LlamaForCausalLM"),
    ],
)
def test_bad_arguments_are_named(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    options = {"data": _windows(), **options}
    with pytest.raises(error, match=match):
        calibrate(_model(), options.pop("data"), **options)
