from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.common.command import main
from experiments.common.timing import read_benchmark
from experiments.common.tiny import save_tiny
from experiments.models_speed.__main__ import app
from experiments.models_speed.tables import calibration_table
from experiments.smollm2.run import own_texts


def test_stages_of_a_calibration_are_timed(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1100,
    )  # fmt: skip
    model = save_tiny(LlamaForCausalLM, config, tmp_path / "model")
    fit, test = own_texts(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(app, [
            "calibrate", "--text", str(fit), "--test-text", str(test), "--model", str(model),
            "--families", "gain", "--options", "steps=3,check_every=1", "--output", str(tmp_path),
        ])  # fmt: skip
    assert stopped.value.code == 0
    result = read_benchmark(tmp_path / "calibration.json")
    (record,) = result["records"]
    assert record["family"] == "gain"
    for clock in ("seconds", "processor"):
        assert record[clock].keys() == {"fit", "select", "test"}
        assert all(value > 0 for value in record[clock].values())
    assert [step for step, _ in record["checks"]][:2] == [0, 1]
    assert result["settings"]["check_every"] == 1


def test_minutes_at_the_setting_of_the_experiment() -> None:
    few = {
        "dtype": "float32", "fit_dtype": "bfloat16", "lengths": [512, 1024], "steps": 3,
        "contexts": [12, 1, 1], "windows": [6, 3, 3],
    }  # fmt: skip
    whole = few | {"steps": 45, "contexts": [45, 6, 8], "windows": [90, 16, 16]}
    record = {"family": "gain", "seconds": {"fit": 60.0, "select": 0.0, "test": 60.0}}
    runs = {
        name: {"settings": sizes, "records": [record]}
        for name, sizes in (("before-few", few), ("after-whole", whole))
    }
    rows = [list(row) for row in calibration_table(runs).rows]
    # Fifteen times the steps; 8 · 2 · 1536 + 16 · 1024 tokens instead of 2 · 1536 + 3 · 1024.
    growth = (8 * 3072 + 16 * 1024) / (3072 + 3 * 1024)
    assert rows == [
        ["before", "gain", "bfloat16", "float32", "3", "60", "0", "60", "120",
         f"{15 + growth:.1f}"],
        ["after", "gain", "bfloat16", "float32", "45", "60", "0", "60", "120", "2.0"],
    ]  # fmt: skip
