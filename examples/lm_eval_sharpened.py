r"""Evaluate a model with lm-evaluation-harness, as it is and sharpened.

    pip install 'sharpmax[clrs,harness]'
    pip install --no-deps dm-clrs==2.0.3
    python examples/lm_eval_sharpened.py                     # a small random model, made here
    python examples/lm_eval_sharpened.py --model some/model  # one of Hugging Face, or a folder
    python examples/lm_eval_sharpened.py --model smollm2 \
        --calibration results/smollm2/families/constant+gain.json

Nothing is fetched unless a model is named. Without a calibration every head follows the exponential
law, only to show that it acts. A random model knows no answer: its exact matches are zero, and the
bits that it needs for a byte of the text show that attention has changed.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

import sharpmax
from experiments.clrs_text.task import Characters, harness
from experiments.clrs_text.task.harness import documents
from sharpmax.models import Calibration, load_model
from sharpmax.policies import Exponential

QUESTIONS = {"algorithms": ["minimum", "insertion_sort"], "lengths": [4, 16], "each": 4}

# A task needs no file: this one asks how well the model foresees questions and answers.
FORESIGHT = {
    "task": "clrs_text_foresight",
    "custom_dataset": documents.documents,
    "test_split": "test",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{question}}{{answer}}",
    "metric_list": [
        {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}
    ],
    "metadata": {"version": 1.0, **QUESTIONS},
}


def random_model() -> tuple[Any, Any]:
    """A small model with random weights, and its tokenizer."""
    tokenizer = Characters().to_transformers()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        # Large weights, so that its heads attend to something.
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


def table(model: Any, tokenizer: Any) -> str:
    """The table of the harness for a model, sharpened or not."""
    results = simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4),
        tasks=["clrs_text", FORESIGHT],
        task_manager=TaskManager(include_path=str(harness.FOLDER), metadata=QUESTIONS),
        gen_kwargs={"max_gen_toks": 128},
        verbosity="ERROR",
    )
    return str(make_table(results))


def main(given: Sequence[str] | None = None) -> None:
    """Evaluate twice, and show both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="name or folder of a causal language model")
    parser.add_argument("--calibration", help="file that sharpmax calibrate wrote for this model")
    parser.add_argument("--reference", type=float, default=2.0, help="nats, see Exponential")
    arguments = parser.parse_args(given)
    model, tokenizer = load_model(arguments.model) if arguments.model else random_model()
    change: Calibration | Exponential = Exponential(arguments.reference)
    if arguments.calibration:
        change = Calibration.load(arguments.calibration, model)
    console = Console(soft_wrap=True)
    console.print("As it is", table(model, tokenizer), sep="\n")
    with sharpmax.sharpen(model, change):
        console.print("Sharpened", table(model, tokenizer), sep="\n")


if __name__ == "__main__":
    main()
