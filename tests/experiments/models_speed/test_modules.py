"""The cost of sharpening plain PyTorch modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.models_speed.__main__ import app
from experiments.models_speed.modules import LAYERS, MODELS, RULES


def test_every_module_is_timed_with_every_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(app, ["modules", "--quick", "--output", str(tmp_path)])
    assert exit_.value.code == 0
    assert "difference per" in capsys.readouterr().out
    records = json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))["records"]
    assert [(each["model"], each["rule"]) for each in records] == [
        (model, rule) for model in MODELS for rule in RULES
    ]
    for each in records:
        difference = each["seconds"] - each["baseline_seconds"]
        assert each["microseconds_per_call"] == pytest.approx(1e6 * difference / LAYERS)
