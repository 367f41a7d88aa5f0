from __future__ import annotations

from transformers import LlamaConfig

from sharpmax.models._config import Hold


def test_the_last_one_puts_the_original_back() -> None:
    config = LlamaConfig()
    config._attn_implementation = "eager"
    first = Hold.take(config)
    config._attn_implementation = "sdpa"
    second = Hold.take(config)
    first.release()
    assert config._attn_implementation == "sdpa"
    second.release()
    assert config._attn_implementation == "eager"
    assert id(config) not in Hold._all
