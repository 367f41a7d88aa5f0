r"""Evaluate a model with lm-evaluation-harness, plain and sharpened.

Run it from the root of a clone, because the tasks of CLRS-Text are part of the experiments:

    pip install -e '.[experiments,harness]'
    pip install --no-deps dm-clrs==2.0.3
    python -m examples.lm_eval_sharpened                     # a small random model
    python -m examples.lm_eval_sharpened --model some/model  # a Hugging Face model, or a folder
    python -m examples.lm_eval_sharpened --model smollm2 \
        --calibration experiments/smollm2/results/families/constant+gain.json

Nothing is downloaded unless you name a model. Without a calibration, every head follows the
exponential law, which shows only that the change takes effect. A random model knows no answer: its
exact matches are zero, and its bits per byte of text show that attention has changed.
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

# A task needs no file: this one measures the loss on questions and answers.
LOSS = {
    "task": "clrs_text_loss",
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
    """Make a small model with random weights, and its tokenizer."""
    tokenizer = Characters().to_transformers()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        # Large weights, so that its heads are not uniform.
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


def table(model: Any, tokenizer: Any) -> str:
    """Return the table of the harness for a model, sharpened or not."""
    results = simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4),
        tasks=["clrs_text", LOSS],
        task_manager=TaskManager(include_path=str(harness.FOLDER), metadata=QUESTIONS),
        gen_kwargs={"max_gen_toks": 128},
        verbosity="ERROR",
    )
    return str(make_table(results))


def main(given: Sequence[str] | None = None) -> None:
    """Evaluate the plain and the sharpened model, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="name or folder of a causal language model")
    parser.add_argument("--calibration", help="calibration of this model, from sharpmax calibrate")
    parser.add_argument(
        "--reference", type=float, default=2.0, help="reference entropy of Exponential, in nats"
    )
    arguments = parser.parse_args(given)
    model, tokenizer = load_model(arguments.model) if arguments.model else random_model()
    change: Calibration | Exponential = Exponential(arguments.reference)
    if arguments.calibration:
        change = Calibration.load(arguments.calibration, model)
    console = Console(soft_wrap=True)
    console.print("Plain", table(model, tokenizer), sep="\n")
    with sharpmax.sharpen(model, change):
        console.print("Sharpened", table(model, tokenizer), sep="\n")


if __name__ == "__main__":
    main()
