"""Engines that serve models without sharpmax, and how to ask each of them a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sharpmax._extras import available
from sharpmax.models._answers import answer
from sharpmax.tasks import Question

__all__ = ["ENGINES", "Ask", "ask_model", "export", "missing"]

Ask = Callable[[Sequence[Question]], list[bool]]
"""Answers questions by greedy decoding: whether each answer is exactly the expected one."""

ENGINES = {
    "transformers": ("transformers",),
    "onnxruntime": ("onnxruntime", "onnxscript"),
    "llama.cpp": ("xllamacpp", "gguf"),
}
"""The packages that each engine needs."""


def missing(engine: str) -> str | None:
    """Return which packages of an engine are not installed, or None."""
    names = [name for name in ENGINES[engine] if not available(name)]
    return f"{' and '.join(names)} not installed" if names else None


def export(model: PreTrainedModel, path: Path) -> Path:
    """Write a model as an ONNX file for one row of any number of tokens."""
    example = {"input_ids": torch.tensor([[1, 2, 3]]), "use_cache": False}
    shapes = {"input_ids": {1: torch.export.Dim.DYNAMIC}, "use_cache": None}
    torch.onnx.export(
        model, (), str(path), kwargs=example, dynamic_shapes=shapes, output_names=["logits"]
    )
    return path


def open_engine(engine: str, path: Path, positions: int) -> Ask:
    """Load a model into an engine.

    Args:
        engine: One of `ENGINES`.
        path: A folder of `save_pretrained`, an ONNX file, or a GGUF file.
        positions: Largest number of tokens of a question with its answer.
    """
    openers = {"transformers": _transformers, "onnxruntime": _onnx, "llama.cpp": _llama_cpp}
    return openers[engine](path, positions)


def ask_model(model: PreTrainedModel) -> Ask:
    """Ask a model in PyTorch, which reads what prompts have in common once."""
    return lambda questions: [each.exact for each in answer(model, questions)]


def _transformers(path: Path, _: int) -> Ask:
    model: Any = AutoModelForCausalLM.from_pretrained(path)
    return ask_model(model.eval())


def _onnx(path: Path, _: int) -> Ask:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options)

    def exact(question: Question) -> bool:
        # Greedy decoding gives the answer if each of its tokens is the most likely one.
        tokens = [*question.ids, *question.answer_ids[:-1]]
        (logits,) = session.run(["logits"], {"input_ids": np.array([tokens])})
        chosen = logits[0, -len(question.answer_ids) :].argmax(-1)
        return tuple(chosen.tolist()) == question.answer_ids

    return lambda questions: [exact(each) for each in questions]


def _llama_cpp(path: Path, positions: int) -> Ask:
    engine: Any = import_module("xllamacpp")
    settings = engine.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx, settings.n_parallel, settings.warmup = positions, 1, False
    settings.cpuparams.n_threads = torch.get_num_threads()
    settings.verbosity = 0
    server = engine.Server(settings)

    def text(question: Question) -> str:
        asked = {
            "prompt": list(question.ids), "n_predict": len(question.answer_ids), "temperature": 0,
            "cache_prompt": True,
        }  # fmt: skip
        found = server.handle_completions(asked)
        return str(found["choices"][0]["text"])

    def ask(questions: Sequence[Question]) -> list[bool]:
        found: dict[int, bool] = {}
        # Sorted, so that neighbours share as long a beginning as possible.
        for number in sorted(range(len(questions)), key=lambda at: questions[at].ids):
            question = questions[number]
            found[number] = text(question) == f" {question.answer}"
        return [found[number] for number in range(len(questions))]

    return ask
