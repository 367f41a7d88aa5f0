from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.common.timing import read_benchmark
from experiments.serving.__main__ import app
from experiments.serving.engines import ENGINES, ask_model, missing, open_engine
from experiments.serving.run import CALIBRATION, MODEL
from experiments.serving.tables import table
from sharpmax.models import Calibration, CannotLoadError, fold_gguf, load_model
from sharpmax.models._evaluation.cells import Cell, questions
from sharpmax.models._load import gguf_file
from sharpmax.tasks import own_source


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_quick_run_asks_every_engine_that_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(app, ["run", "--quick", "--output", str(tmp_path)])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "note: llama.cpp is left out: " in said
    assert (tmp_path / "serving.png").exists()
    result = read_benchmark(tmp_path / "serving.json")
    engines = [name for name in ENGINES if missing(name) is None and name != "llama.cpp"]
    assert {(each["engine"], each["model"]) for each in result["records"]} == {
        ("transformers", "sharpened"),
        *((engine, model) for engine in engines for model in ("plain", "folded")),
    }
    # Every engine got the same questions.
    for task in ("passkey", "key-value"):
        asked = {tuple(each["contexts"]) for each in result["records"] if each["task"] == task}
        assert asked == {(0, 1, 0, 1)}


def test_the_table_pairs_questions_and_counts_agreement() -> None:
    records = [
        {"engine": "transformers", "model": model, "task": "passkey", "length": 64}
        | {"correct": correct, "contexts": [0, 1, 0, 1]}
        for model, correct in (
            ("plain", [0, 0, 0, 1]), ("sharpened", [1, 1, 1, 1]), ("folded", [1, 1, 0, 1]),
        )
    ]  # fmt: skip
    found = table({"records": records, "settings": {"questions": 4, "contexts": 2}})
    assert [row[2] for row in found.rows] == ["plain", "sharpened, not folded", "folded"]
    assert [row[3] for row in found.rows] == ["25", "100", "75"]
    assert found.rows[2][4].startswith("+50.0 [")
    assert found.rows[2][5] == "3 of 4"


def test_llama_cpp_answers_with_the_folded_file_as_pytorch_does_with_the_sharpened_model(
    tmp_path: Path,
) -> None:
    if (reason := missing("llama.cpp")) is not None:
        pytest.skip(reason)
    try:
        plain = gguf_file(MODEL)
    except CannotLoadError as error:
        pytest.skip(str(error))
    import sharpmax

    model, tokenizer = load_model(MODEL)
    calibration = Calibration.load(CALIBRATION, model)
    # Eight questions about one passage, which is read once.
    cell = Cell("key-value", 512)
    asked = questions(cell, tokenizer, [own_source()], count=8, contexts=1, seed=0)
    with sharpmax.sharpen(model, calibration):
        wanted = ask_model(model)(asked)
    folded = tmp_path / "folded.gguf"
    fold_gguf(plain, calibration, folded)
    found = open_engine("llama.cpp", folded, 640)(asked)
    before = open_engine("llama.cpp", plain, 640)(asked)
    # llama.cpp rounds activations to eight bits, which may turn one close answer.
    assert sum(a != b for a, b in zip(found, wanted, strict=True)) <= 1
    assert sum(found) > sum(before)
