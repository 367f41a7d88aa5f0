"""Tiny models of many families, with random weights, and inputs for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import transformers as hf
from torch import Tensor

VOCABULARY = 48
LENGTH = 11
PADDING = 1

TINY: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
"""Settings of a decoder whose size does not matter."""

_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PADDING,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": PADDING,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_PAIR: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "dropout": 0.0,
    "pad_token_id": PADDING,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
}


@dataclass(frozen=True)
class Family:
    """How to build a tiny model of a family, and what to expect of it."""

    name: str
    model: str
    config: str
    settings: dict[str, Any] = field(hash=False)
    kind: str = "decoder"
    kinds: tuple[str, ...] = ("global", "global")
    """The kinds of its attention layers."""

    def build(self, seed: int = 0, **settings: Any) -> hf.PreTrainedModel:
        """Build a model whose attention is neither flat nor on a single key."""
        config = getattr(hf, self.config)(**{**self.settings, **settings})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = getattr(hf, self.model)(config)
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=0.25)
                elif name.endswith("sinks"):
                    torch.nn.init.normal_(parameter)
        return model.eval()

    def inputs(self, batch: int = 2, length: int = LENGTH) -> dict[str, Tensor]:
        """Return the arguments of a call without padding."""
        generator = torch.Generator().manual_seed(length)
        tokens = torch.randint(4, VOCABULARY, (batch, length), generator=generator)
        if self.kind == "vision":
            return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
        if self.kind == "audio":
            features = torch.randn(batch, 8, 16, generator=generator)
            return {"input_features": features, "decoder_input_ids": tokens}
        if self.kind == "pair":
            return {"input_ids": tokens, "decoder_input_ids": tokens.flip(1)}
        return {"input_ids": tokens}

    def __str__(self) -> str:
        return self.name


def result(model: hf.PreTrainedModel, **inputs: Any) -> Tensor:
    """Return the logits, or the last hidden state."""
    output = model(**inputs)
    return output.logits if "logits" in output else output.last_hidden_state


FAMILIES = [
    Family("llama", "LlamaForCausalLM", "LlamaConfig", _DECODER),
    Family(
        "mistral", "MistralForCausalLM", "MistralConfig", {**_DECODER, "sliding_window": 4},
        kinds=("sliding", "sliding"),
    ),
    Family("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _DECODER),
    Family("qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 8}),
    Family(
        "gemma2", "Gemma2ForCausalLM", "Gemma2Config",
        {
            **_DECODER, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 2.0,
        },
        kinds=("sliding", "global"),
    ),
    Family(
        "gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig",
        {
            **_DECODER, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        kinds=("sliding", "global"),
    ),
    Family(
        "gpt2", "GPT2LMHeadModel", "GPT2Config",
        {
            "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
            "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "pad_token_id": PADDING,
            "bos_token_id": 2, "eos_token_id": 3,
        },
    ),
    Family("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _DECODER),
    Family("phi3", "Phi3ForCausalLM", "Phi3Config", _DECODER),
    Family("olmo2", "Olmo2ForCausalLM", "Olmo2Config", _DECODER),
    Family(
        "gpt_oss", "GptOssForCausalLM", "GptOssConfig",
        {
            **_DECODER, "head_dim": 8, "sliding_window": 4, "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "layer_types": ["sliding_attention", "full_attention"],
        },
        kinds=("sliding", "global"),
    ),
    Family("granite", "GraniteForCausalLM", "GraniteConfig", _DECODER),
    Family("cohere", "CohereForCausalLM", "CohereConfig", _DECODER),
    Family(
        "deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3Config",
        {
            **_DECODER, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
            "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
            "first_k_dense_replace": 2, "moe_intermediate_size": 16, "n_routed_experts": 4,
        },
    ),
    Family(
        "llama4", "Llama4ForCausalLM", "Llama4TextConfig",
        {
            **_DECODER, "head_dim": 8, "intermediate_size_mlp": 32, "num_local_experts": 2,
            "attention_chunk_size": 4, "no_rope_layers": [1, 0], "moe_layers": [],
            "layer_types": ["chunked_attention", "full_attention"],
        },
        kinds=("chunked", "global"),
    ),
    Family(
        "bert", "BertModel", "BertConfig", _ENCODER, kind="encoder", kinds=("encoder", "encoder")
    ),
    Family(
        "roberta", "RobertaModel", "RobertaConfig", _ENCODER, kind="encoder",
        kinds=("encoder", "encoder"),
    ),
    Family(
        "distilbert", "DistilBertModel", "DistilBertConfig",
        {
            "vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 32, "n_layers": 2, "n_heads": 4,
            "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0,
            "pad_token_id": PADDING,
        },
        kind="encoder", kinds=("encoder", "encoder"),
    ),
    Family(
        "bart", "BartForConditionalGeneration", "BartConfig",
        {**_PAIR, "max_position_embeddings": 64}, kind="pair",
        kinds=("encoder", "encoder", "global", "cross", "global", "cross"),
    ),
    Family(
        "t5", "T5ForConditionalGeneration", "T5Config",
        {
            "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2,
            "num_decoder_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
            "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
            "pad_token_id": PADDING, "eos_token_id": 3, "decoder_start_token_id": 2,
        },
        kind="pair", kinds=("encoder", "encoder", "global", "cross", "global", "cross"),
    ),
    Family(
        "whisper", "WhisperForConditionalGeneration", "WhisperConfig",
        {
            **_PAIR, "num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 32,
            "suppress_tokens": None, "begin_suppress_tokens": None,
        },
        kind="audio", kinds=("encoder", "encoder", "global", "cross", "global", "cross"),
    ),
    Family(
        "vit", "ViTModel", "ViTConfig",
        {
            "image_size": 16, "patch_size": 4, "hidden_size": 32, "intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 4,
        },
        kind="vision", kinds=("encoder", "encoder"),
    ),
    Family(
        "siglip", "SiglipVisionModel", "SiglipVisionConfig",
        {
            "image_size": 16, "patch_size": 4, "hidden_size": 32, "intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vision_use_head": False,
        },
        kind="vision", kinds=("encoder", "encoder"),
    ),
]  # fmt: skip

BY_NAME = {family.name: family for family in FAMILIES}
DECODERS = [family for family in FAMILIES if family.kind == "decoder"]
GENERATORS = [family for family in FAMILIES if family.kind in ("decoder", "pair", "audio")]


@cache
def shared(name: str) -> hf.PreTrainedModel:
    """Return the one model of a family that tests share if they do not change it."""
    return BY_NAME[name].build()


def indexed() -> hf.PreTrainedModel:
    """Build a model that restricts its attention to chosen keys."""
    config = hf.DeepseekV32Config(
        **TINY, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4,
        v_head_dim=4, first_k_dense_replace=2, n_routed_experts=2, index_n_heads=2,
        index_head_dim=8, index_topk=4,
    )  # fmt: skip
    return hf.DeepseekV32ForCausalLM(config)
