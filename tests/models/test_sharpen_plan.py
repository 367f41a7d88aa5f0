from __future__ import annotations

from typing import Any

import pytest

from model_families import BY_NAME, shared
from sharpmax.models import CannotSharpenError
from sharpmax.models._inspect import attention_layers
from sharpmax.models._sharpen import plan
from sharpmax.policies import Constant, Exponential, Identity, Policy

POLICY = Exponential(1.0)


def policies(
    name: str, policy: object, which: Any = None, heads: Any = None
) -> list[Policy | None]:
    layers = attention_layers(shared(name))
    rules = plan(layers, policy, which, heads)
    return [rules[layer.index].policy if layer.index in rules else None for layer in layers]


def test_layers_by_index_name_and_kind() -> None:
    assert policies("llama", POLICY) == [POLICY, POLICY]
    assert policies("llama", POLICY, 1) == [None, POLICY]
    assert policies("llama", POLICY, [0]) == [POLICY, None]
    assert policies("llama", POLICY, "model.layers.1.self_attn") == [None, POLICY]
    assert policies("gemma2", POLICY, "sliding") == [POLICY, None]
    assert policies("bart", POLICY, ["cross"]) == [None, None, None, POLICY, None, POLICY]
    assert policies("bart", POLICY, ["encoder", 3]) == [POLICY, POLICY, None, POLICY, None, None]


def test_a_mapping_of_layers() -> None:
    other = Constant(2.0)
    assert policies("llama", {0: POLICY}) == [POLICY, None]
    assert policies("llama", {0: POLICY, 1: Identity()}) == [POLICY, None]
    assert policies("gemma2", {"global": POLICY, 0: other}) == [other, POLICY]
    assert policies("gemma2", {"global": POLICY, 1: None}) == [None, None]
    assert policies("gemma2", {0: POLICY, 1: other}, [1]) == [None, other]


def test_heads_in_every_layer_or_by_layer() -> None:
    some = Exponential(1.0, strength=[0.0, 1.0, 0.0, 1.0])
    assert policies("llama", POLICY, heads=[1, 3]) == [some, some]
    assert policies("llama", POLICY, heads={1: [1, 3]}) == [None, some]
    assert policies("gemma2", POLICY, heads={"sliding": (1, 3), 1: range(4)}) == [some, POLICY]
    # The last choice that names a layer counts.
    assert policies("gemma2", POLICY, heads={"sliding": (0,), 0: (1, 3)}) == [some, None]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("sharp",), TypeError, "policy: expected a policy, a mapping"),
        (({0: "sharp"},), TypeError, r"policy\[0\]: expected a policy or None"),
        (({2: POLICY},), ValueError, "policy: expected an index from 0 to 1, got 2"),
        (({True: POLICY},), TypeError, "policy: expected an index, a name or a kind"),
        ((POLICY, [5]), ValueError, "layers: expected an index from 0 to 1, got 5"),
        ((POLICY, "model.layers.7"), ValueError, "layers: expected a kind .* or the name"),
        ((POLICY, None, [4]), ValueError, r"heads: expected numbers from 0 to 3, got \[4\]"),
        ((POLICY, None, {9: [0]}), ValueError, "heads: expected an index from 0 to 1, got 9"),
    ],
)
def test_what_cannot_be_meant(arguments: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        policies("llama", *arguments)


def test_a_chosen_layer_that_cannot_be_reached_is_refused() -> None:
    layers = attention_layers(BY_NAME["siglip"].build(vision_use_head=True))
    assert sorted(plan(layers, POLICY, None, None)) == [0, 1]
    assert sorted(plan(layers, {"encoder": POLICY}, None, None)) == [0, 1]
    for arguments in ((POLICY, [2]), ({2: POLICY}, None), ({"head.attention": POLICY}, None)):
        with pytest.raises(
            CannotSharpenError, match=r"head.attention: MultiheadAttention does not use"
        ):
            plan(layers, *arguments, None)
