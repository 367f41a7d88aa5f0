from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from sharpmax import MissingExtraError
from sharpmax._extras import available, require


def test_a_missing_module_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingExtraError, match=r"drawing.*matplotlib.*pip install 'sharpmax\[report\]'"
    ):
        require("matplotlib", extra="report", what="drawing a figure")


def test_a_missing_parent_is_a_missing_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"no_such_package\.part"):
        require("no_such_package.part", extra="report", what="it")


def test_a_module_that_breaks_on_import_raises_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        require("broken_module", extra="report", what="it")
    assert not isinstance(caught.value, MissingExtraError)


def test_the_error_is_an_import_error_and_survives_pickling() -> None:
    error = MissingExtraError("scipy", extra="report", what="a test")
    assert isinstance(error, ImportError)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.name, copy.extra, copy.what) == ("scipy", "report", "a test")


def test_available_does_not_import() -> None:
    assert available("this") is True
    assert "this" not in sys.modules
    assert available("no_such_module") is False
