from __future__ import annotations

from experiments.common.methods import METHODS, ORACLE, look


def test_no_two_methods_look_the_same() -> None:
    assert len({each.label for each in METHODS.values()}) == len(METHODS)
    assert len({(each.color, each.line_style) for each in METHODS.values()}) == len(METHODS)


def test_families_and_unknown_names() -> None:
    assert look("fixed-2").label == "constant, β = 2"
    assert look("top-16").label == "top-16"
    assert look("top-k").label == "top-k"
    assert look("of-my-own") == look("of-my-own")
    assert look("of-my-own").label == "of-my-own"


def test_the_oracle_says_what_it_is() -> None:
    assert "uses the label" in look(ORACLE).meaning


def test_what_matplotlib_takes() -> None:
    assert look("softmax").line_style == "solid"
    assert look("paper").line_style == (0, (5.0, 1.8))
    assert look("exponential").text_color != look("exponential").color
