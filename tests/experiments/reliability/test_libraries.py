"""Models of other libraries: what is reached, what is missed by name, and what is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.reliability import libraries
from experiments.reliability.__main__ import app
from experiments.reliability.libraries import KIND, Case, try_case
from sharpmax._files import read_sealed
from torch_models import Attention, ByHand, Stack, made, tokens


def test_reached_and_missed_calls_are_counted() -> None:
    found = try_case(Case("torch", "mixed", lambda: (made(Stack(Attention(), ByHand())), tokens())))
    assert found is not None
    assert found.reached == 1
    assert len(found.missed) == 1
    assert found.missed[0].startswith("blocks.1.attn: its attention is written out by hand")
    assert found.neutral < 1e-5 < found.changed
    assert found.restored


def test_a_package_that_is_not_installed_is_left_out() -> None:
    assert try_case(Case("no-such-package-of-ours", "none", lambda: pytest.fail("built"))) is None


@pytest.mark.parametrize("installed", [True, False])
def test_the_command_writes_what_is_installed(
    installed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = "torch" if installed else "no-such-package-of-ours"
    case = Case(package, "a stack", lambda: (made(Stack(Attention())), tokens()))
    monkeypatch.setattr(libraries, "CASES", (case,))
    with pytest.raises(SystemExit) as exit_:
        main(app, ["libraries", "--output", str(tmp_path)])
    assert exit_.value.code == 0
    said = capsys.readouterr().out
    path = tmp_path / "libraries.json"
    assert path.exists() == installed
    if installed:
        assert "a stack" in said
        assert read_sealed(path, KIND)["found"][0]["reached"] == 1
    else:
        assert "None of these is installed: no-such-package-of-ours" in said
