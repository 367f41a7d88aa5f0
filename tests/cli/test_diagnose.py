from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from sharpmax.cli import main
from sharpmax.models import Diagnosis
from tiny_models import save, save_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["diagnose", *map(str, arguments)])
    return exit_.value.code


def test_measures_itself_and_writes_a_report(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = hf.utils.logging.get_verbosity()
    options = ["--lengths", "16,64,256", "--json", "new/figures.json", "--output", "deep/er.html"]
    assert _run(model, *options) == 0
    said = capsys.readouterr().out
    assert "llama (float32, sdpa): 8 heads, 2 inputs" in said
    assert "lengths 16, 64, 256" in said
    assert f"Report: {Path('deep/er.html')}" in said
    diagnosis = Diagnosis.load(tmp_path / "new/figures.json")
    assert diagnosis.lengths == (16, 64, 256)
    assert diagnosis.source.startswith("the source code of sharpmax")
    page = (tmp_path / "deep/er.html").read_text(encoding="utf-8")
    assert "the source code of sharpmax" in page
    assert str(tmp_path) not in page, "folders are nobody's business"
    assert hf.utils.logging.get_verbosity() == before


def test_a_text_and_its_pieces(model: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("To be, or not to be? " * 30, encoding="utf-8")
    options = ["--text", book, "--sink", "--rows", "5", "--json", "a.json", "--pictures", "drawn"]
    assert (
        _run(model, *options, "--lengths", "100,200", "--inputs", "3", "--dtype", "bfloat16") == 0
    )
    diagnosis = Diagnosis.load("a.json")
    assert (diagnosis.inputs, diagnosis.sink, diagnosis.rows) == (3, True, 5)
    assert diagnosis.dtype == "bfloat16"
    assert diagnosis.source == "text of book.txt"
    # As far as text and positions go.
    assert _run(model, *options) == 0
    assert Diagnosis.load("a.json").lengths == (128, 256, 512)
    book.write_text("To be, or not to be?", encoding="utf-8")
    assert _run(model, *options) == 0
    assert Diagnosis.load("a.json").lengths == (10, 20)
    drawn = {path.name for path in Path("drawn").iterdir()}
    assert drawn == {"slopes.png", "entropy.png", "critical.png"}


def test_the_prompt_of_the_paper(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(model, "--prompt", "maximum", "--inputs", "3", "--json", "a.json") == 0
    diagnosis = Diagnosis.load("a.json")
    # 128 elements would be more tokens than the model has positions.
    assert (diagnosis.lengths, diagnosis.unit) == ((8, 16, 32, 64), "elements")
    assert diagnosis.tokens[-1] > 64 * 4
    assert {record.measured for record in diagnosis.records} == {3}
    assert "elements" in capsys.readouterr().out
    assert _run(model, "--prompt", "maximum", "--lengths", "3,5", "--seed", "1") == 0


def test_prompts_and_pieces_begin_as_texts_do(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def measure(_: Any, given: Any, **__: Any) -> None:
        seen.update(given=given)
        raise NotImplementedError("enough")

    monkeypatch.setattr("sharpmax.models.diagnose", measure)
    assert _run(model, "--prompt", "maximum", "--lengths", "3,5") == 1
    assert bytes(seen["given"][3][0]).startswith(b"What is the maximum")
    load = sys.modules["sharpmax.models"].load_model

    def load_with_beginning(name: str) -> Any:
        loaded, tokenizer = load(name)

        class Beginning:
            def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
                return [1] * add_special_tokens + list(tokenizer.encode(text))

            def __call__(self, text: str, *, verbose: bool, **options: Any) -> dict[str, list[int]]:
                assert not verbose
                return {"input_ids": self.encode(text, **options)}

        return loaded, Beginning()

    monkeypatch.setattr("sharpmax.models.load_model", load_with_beginning)
    assert _run(model, "--prompt", "maximum", "--lengths", "3,5") == 1
    assert bytes(seen["given"][3][0]).startswith(b"\x01What is the maximum")
    Path("book.txt").write_text("To be, or not", encoding="utf-8")
    assert _run(model, "--text", "book.txt", "--lengths", "3,7", "--inputs", "2") == 1
    assert [bytes(piece) for piece in seen["given"]] == [b"\x01To be,", b"\x01 or no"]


def test_an_interrupt_reports_what_is_done(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = sys.modules["sharpmax.models"].diagnose

    def interrupted(*arguments: Any, on_progress: Any, **options: Any) -> Diagnosis:
        def stop(done: float, total: int) -> None:
            on_progress(done, total)
            if done == until:
                raise KeyboardInterrupt

        result: Diagnosis = measure(*arguments, on_progress=stop, **options)
        return result

    monkeypatch.setattr("sharpmax.models.diagnose", interrupted)
    until = 1.0
    assert _run(model, "--lengths", "16,32", "--inputs", "3") == 0
    assert "1 input (interrupted)" in capsys.readouterr().out
    until = 0.5
    assert _run(model, "--lengths", "16,32", "--inputs", "3") == 0
    said = capsys.readouterr().out
    assert "4 heads, an unfinished input (interrupted)" in said
    assert "model.layers.1.self_attn: interrupted before this layer" in said
    assert "part of the first" in Path("build/diagnosis.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--lengths", "64"], 2, "--lengths: expected at least 2 different whole numbers"),
        (["--lengths", "64,many"], 2, "got '64,many'"),
        (
            ["--lengths", "64,1024"],
            2,
            "at most the 512 positions of LlamaForCausalLM, got 1024",
        ),
        (["--prompt", "maximum", "--lengths", "8,512"], 2, "512 elements: expected at most the"),
        (["--prompt", "maximum", "--lengths", "8,20000"], 2, "elements: expected from 1 to 10000"),
        (["--prompt", "minimum"], 2, "--prompt"),
        (["--prompt", "maximum", "--text", "short.txt"], 2, "a text or a prompt, got both"),
        (["--text", "empty.txt"], 2, "got empty.txt, which is empty"),
        (["--text", "bytes.txt"], 2, "expected text in UTF-8"),
        (["--text", "tiny.txt"], 2, "expected a text of at least 4 tokens, got 3"),
        (["--text", "short.txt", "--lengths", "8,64"], 2, "at least 64 tokens, the longest of"),
        (["--text", "short.txt", "--lengths", "4,8", "--inputs", "2"], 2, "fewer --inputs or"),
        (["--text", "none.txt"], 1, "none.txt: No such file"),
        (["--output", "empty.txt/report.html"], 1, "empty.txt"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str],
    code: int,
    said: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "tiny.txt").write_text("abc", encoding="utf-8")
    (tmp_path / "short.txt").write_text("short text", encoding="utf-8")
    assert _run(model, *arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("**/*.html"))


def test_models_that_cannot_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mamba = hf.MambaConfig(vocab_size=128, hidden_size=8, num_hidden_layers=1, state_size=2)
    small = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2}
    pair = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=128, **small))
    for name, made, said in (
        ("mamba", hf.MambaForCausalLM(mamba), "expected a model with attention layers"),
        ("t5", pair, "got the encoder-decoder"),
    ):
        folder = save(made, tmp_path / name)
        capsys.readouterr()
        assert _run(folder, "--lengths", "8,16") == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    few = save_llama(tmp_path / "few", max_position_embeddings=64)
    assert _run(few, "--prompt", "maximum") == 1
    assert "expected positions for prompts of 16 elements, got 64" in capsys.readouterr().err
    assert _run(tmp_path, "--lengths", "8,16") == 1
    assert "no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["matplotlib", "transformers"])
def test_a_missing_extra_is_named_before_the_work(
    module: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert _run(model) == 1
    assert f"needs {module}, which is not installed" in capsys.readouterr().err


def test_figures_are_sealed(model: Path, tmp_path: Path) -> None:
    assert _run(model, "--lengths", "8,16", "--json", "a.json") == 0
    content = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert content["seal"]


FUNCTION = """
import torch
from torch import nn

def make():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 1), lambda length: torch.randn(1, length, 8)

wrong = make()[1]
"""


def test_a_function_makes_the_model_and_its_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_models.py").write_text(FUNCTION)
    assert _run("own_models:make", "--lengths", "8,16", "--json", "figures.json") == 0
    said = capsys.readouterr().out
    assert "TransformerEncoder (float32, its own): 2 heads, 1 input" in said
    found = Diagnosis.load("figures.json")
    assert (found.lengths, found.source) == ((8, 16), "inputs of own_models:make")
    assert {head.name for head in found.heads} == {"layers.0.self_attn"}
    assert str(tmp_path) not in sys.path
    for arguments, message in [
        (["own_models:missing"], "has no attribute 'missing'"),
        (["no_such_module:make"], "No module named 'no_such_module'"),
        (["own_models:torch.nn.Identity"], "expected a function that returns a torch.nn.Module"),
        (["own_models:make", "--prompt", "maximum"], "expected none of them with own_models:make"),
    ]:
        assert _run(*arguments) != 0
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
