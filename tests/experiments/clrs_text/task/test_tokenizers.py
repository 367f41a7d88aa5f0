from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.clrs_text.task import Characters, Numbers
from experiments.clrs_text.task._generator import draw
from sharpmax.tasks._questions import encode

STRINGS = json.loads((Path(__file__).parent / "strings.json").read_text(encoding="utf-8"))[
    "strings"
]
TOKENIZERS = [Characters(), Numbers()]

each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda each: each.name)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    # Drawn again, since the long ones are kept by their hash.
    return [
        "".join(
            draw(each["algorithm"], each["length"], seed=each["seed"], use_hints=each["use_hints"])
        )
        for each in STRINGS
    ]


@each_tokenizer
def test_every_text_comes_back_exactly(tokenizer: Characters, texts: list[str]) -> None:
    assert len(texts) == 360
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_number_is_one_token_and_nothing_else_is_more_than_a_character(
    texts: list[str],
) -> None:
    numbers = Numbers()
    for text in texts:
        tokens = [numbers.vocabulary[token] for token in numbers.encode(text)]
        written = re.findall(r"-?\d+(?:\.\d+)?", text)
        assert [token for token in tokens if token.strip("-")[:1].isdigit()] == written
        assert len(tokens) == len(re.sub(r"-?\d+(?:\.\d+)?", "0", text))


def test_every_number_of_the_ranges_has_a_token() -> None:
    tokenizer = Numbers(decimals=(-1, 1), integers=(-1, 20))
    for number in [
        "-0.0",
        "-1.0",
        "-0.999",
        "-0.1",
        "0.0",
        "0.001",
        "0.25",
        "1.0",
        "-1",
        "0",
        "20",
    ]:
        assert len(tokenizer.encode(number)) == 1
    for number in ["1.001", "-1.001", "21", "-2", "0.1234", "0.50"]:
        with pytest.raises(ValueError, match=f"expected tokens of Numbers, got '{number}'"):
            tokenizer.encode(f"[0.1 {number}]")
    assert "-0.0" not in Numbers(decimals=(0, 1)).vocabulary


@each_tokenizer
def test_special_tokens(tokenizer: Characters) -> None:
    assert len(set(tokenizer.vocabulary)) == len(tokenizer.vocabulary) == len(tokenizer)
    assert tokenizer.pad != tokenizer.eos
    ended = tokenizer.encode("[1 0]\n\n", add_special_tokens=True)
    assert ended == [*tokenizer.encode("[1 0]\n\n"), tokenizer.eos]
    assert tokenizer.decode([*ended, tokenizer.pad]) == "[1 0]\n\n"
    # It is what the other tasks take as a tokenizer.
    assert encode(tokenizer, "[1 0]") == tuple(tokenizer.encode("[1 0]"))
    with pytest.raises(ValueError, match=f"expected tokens of {type(tokenizer).__name__}, got 'é'"):
        tokenizer.encode("é")


@each_tokenizer
def test_the_same_tokens_for_transformers(tokenizer: Characters, texts: list[str]) -> None:
    other = tokenizer.to_transformers()
    assert len(other) == len(tokenizer)
    assert (other.pad_token_id, other.eos_token_id) == (tokenizer.pad, tokenizer.eos)
    for text in texts[::7]:
        tokens = tokenizer.encode(text)
        assert other.encode(text) == tokens
        assert other.decode([*tokens, tokenizer.eos], skip_special_tokens=True) == text
