from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from sharpmax.models import (
    Calibration,
    CannotFoldError,
    CannotLoadError,
    LayerCalibration,
    fold_gguf,
)
from sharpmax.models._fold.gguf import BLOCKS
from sharpmax.models._load import gguf_file
from sharpmax.policies import Constant, Exponential

BETAS, GAINS = (1.7, 0.6), (0.5, -1.3)


def calibration(**layer: Any) -> Calibration:
    own = LayerCalibration(0, Constant(BETAS), GAINS)
    return Calibration("", "llama", (2,), (LayerCalibration(0, **layer) if layer else own,))


def write(path: Path, kind: Kind, width: int, **others: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Write one layer of two heads; return its tensors, dequantised."""
    writer = gguf.GGUFWriter(path, others.pop("architecture", "llama"))
    writer.add_block_count(1)
    writer.add_head_count(2)
    for key, value in others.pop("settings", {}).items():
        writer.add_float32(key, value)
    rng = np.random.default_rng(0)
    for name in ("attn_q", "attn_output"):
        shape = (2 * width, 2 * width)
        if kind in (Kind.F32, Kind.F16):
            data = rng.standard_normal(shape).astype(np.float32 if kind == Kind.F32 else np.float16)
            writer.add_tensor(f"blk.0.{name}.weight", data)
            continue
        # Any bytes are a block; only the scales have to be sensible.
        values, size, places = BLOCKS[kind.name]
        raw = rng.integers(0, 256, (shape[0], shape[1] // values, size), dtype=np.uint8)
        for place in places:
            scales = rng.uniform(0.01, 0.1, raw.shape[:2]).astype(np.float16)
            raw[..., place : place + 2] = scales[..., None].view(np.uint8)
        writer.add_tensor(f"blk.0.{name}.weight", raw.reshape(shape[0], -1), raw_dtype=kind)
    for name, data in others.items():
        writer.add_tensor(f"blk.0.{name.replace('__', '.')}", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read(path)


def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    found = gguf.GGUFReader(path).tensors
    return {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in found}


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, *(Kind[name] for name in BLOCKS)], ids=str)
def test_scales_are_multiplied_and_nothing_else(kind: Kind, tmp_path: Path) -> None:
    width = 256 if kind.name in BLOCKS and BLOCKS[kind.name][0] == 256 else 64
    source, output = tmp_path / "a.gguf", tmp_path / "b.gguf"
    before = write(source, kind, width)
    report = fold_gguf(source, calibration(), output)
    assert report.error <= 2**-11
    assert "2 temperatures and 2 gains folded without requantising" in report.summary()
    after = read(output)
    wanted = {
        "blk.0.attn_q.weight": before["blk.0.attn_q.weight"] * np.repeat(BETAS, width)[:, None],
        "blk.0.attn_output.weight": before["blk.0.attn_output.weight"] * np.repeat(GAINS, width),
    }
    for name, values in wanted.items():
        # A value is a difference of scale and minimum, so its error is relative to the largest.
        error = np.abs(after[name] - values).max()
        assert error <= 2**-9 * np.abs(values).max()
        assert error < 0.05 * np.abs(before[name] - values).max()
    assert output.stat().st_size == source.stat().st_size
    old, new = (np.frombuffer(path.read_bytes(), np.uint8) for path in (source, output))
    if kind.name in BLOCKS:
        _, size, places = BLOCKS[kind.name]
        assert (old != new).mean() <= 2 * len(places) / size


def test_a_block_of_two_heads_needs_one_gain(tmp_path: Path) -> None:
    source, output = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write(source, Kind.Q4_K, 128)
    with pytest.raises(CannotFoldError, match="one scale for 256 values, of heads of 128"):
        fold_gguf(source, calibration(), output)
    assert not output.exists()
    report = fold_gguf(source, calibration(), output, partial=True)
    assert [each.what for each in report.folded] == ["temperature"]
    assert "not folded: 2 gains of layer 0" in report.summary()
    alike = calibration(gain=(0.5, 0.5))
    assert fold_gguf(source, alike, tmp_path / "c.gguf").folded[0].what == "gain"


def test_biases_norms_and_sinks(tmp_path: Path) -> None:
    ones = np.ones(128, np.float32)
    source = tmp_path / "a.gguf"
    write(source, Kind.Q8_0, 64, attn_q__bias=ones, attn_sinks__weight=ones[:2])
    report = fold_gguf(source, calibration(policy=Constant(BETAS)), tmp_path / "b.gguf")
    after = read(tmp_path / "b.gguf")
    np.testing.assert_allclose(after["blk.0.attn_q.bias"], np.repeat(BETAS, 64), rtol=1e-6)
    np.testing.assert_allclose(after["blk.0.attn_sinks.weight"], BETAS, rtol=1e-6)
    assert len(report.folded[0].parameters) == 3
    write(source, Kind.Q8_0, 64, attn_q_norm__weight=ones)
    fold_gguf(source, calibration(policy=Constant(BETAS)), tmp_path / "c.gguf")
    after, before = read(tmp_path / "c.gguf"), read(source)
    np.testing.assert_allclose(after["blk.0.attn_q_norm.weight"], np.repeat(BETAS, 64), rtol=1e-6)
    np.testing.assert_array_equal(after["blk.0.attn_q.weight"], before["blk.0.attn_q.weight"])


def test_refusals(tmp_path: Path) -> None:
    source, output = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write(source, Kind.Q4_0, 64, attn_q_norm__weight=np.ones(64, np.float32))
    with pytest.raises(CannotFoldError, match="attn_q_norm treats the queries of all heads alike"):
        fold_gguf(source, calibration(), output)
    write(source, Kind.Q4_0, 64, settings={"llama.attn_logit_softcapping": 30.0})
    with pytest.raises(CannotFoldError, match="soft cap"):
        fold_gguf(source, calibration(), output)
    write(source, Kind.Q4_0, 64)
    with pytest.raises(CannotFoldError, match="each row its own temperature"):
        fold_gguf(source, calibration(policy=Exponential(0.5)), output)
    with pytest.raises(CannotFoldError, match="exceeds half precision"):
        fold_gguf(source, calibration(gain=(1e7, 1.0)), output)
    with pytest.raises(CannotFoldError, match="expected a calibration of llama or mistral with 1"):
        fold_gguf(source, Calibration("", "llama", (2, 2), calibration().layers), output)
    with pytest.raises(CannotFoldError, match="the calibration changes nothing"):
        fold_gguf(source, Calibration("", "llama", (2,)), output)
    write(source, Kind.Q4_0, 64, architecture="bloom")
    with pytest.raises(CannotFoldError, match=r"expected an architecture of llama.*got 'bloom'"):
        fold_gguf(source, calibration(), output)
    (tmp_path / "c.gguf").write_bytes(b"nothing")
    with pytest.raises(CannotFoldError, match="expected a GGUF file"):
        fold_gguf(tmp_path / "c.gguf", calibration(), output)
    with pytest.raises(CannotFoldError, match="expected a new file"):
        fold_gguf(source, calibration(), source)
    assert not output.exists()
    with pytest.raises(CannotLoadError, match="expected a GGUF file"):
        gguf_file(tmp_path / "none.gguf")


def test_the_file_of_smollm2(tmp_path: Path) -> None:
    try:
        source = gguf_file("smollm2")
    except CannotLoadError as missing:
        pytest.skip(str(missing))
    families = Path(__file__).parents[3] / "experiments/smollm2/results/families"
    found = Calibration.load(families / "constant+gain.json")
    report = fold_gguf(source, found, tmp_path / "folded.gguf")
    assert not report.not_folded
    assert report.error <= 2**-10
    before, after = (
        {t.name: t for t in gguf.GGUFReader(path).tensors}
        for path in (source, tmp_path / "folded.gguf")
    )
    changed = {name for name in before if not np.array_equal(before[name].data, after[name].data)}
    assert changed == {name for each in report.folded for name in each.parameters}
    own = found.layers[3]
    assert own.policy is not None
    betas = np.repeat(own.policy.per_head()["beta"], 64)[:, None]
    old, new = (
        gguf.dequantize(each["blk.3.attn_q.weight"].data, Kind.Q4_1) for each in (before, after)
    )
    np.testing.assert_allclose(new, old * betas, atol=2**-9 * np.abs(old).max())
