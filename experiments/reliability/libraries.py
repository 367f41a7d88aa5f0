"""Sharpen small models of other libraries, as far as they are installed, and list what is reached.

All weights are random. The libraries are not dependencies: install those that you want to try.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

import sharpmax
from experiments.common.command import Output, current_command, say, show
from sharpmax._files import read_sealed, versions, write_sealed
from sharpmax.policies import Constant
from sharpmax.report._page.tables import Table, plain

__all__ = ["CASES", "Case", "Found", "libraries", "libraries_table", "try_case"]

KIND: Final = "libraries, format 1"
Made = tuple[nn.Module, Any]


@dataclass(frozen=True)
class Case:
    """A model of a library.

    Attributes:
        package: Distribution that must be installed.
        model: What is built.
        make: Returns the model and its inputs.
    """

    package: str
    model: str
    make: Callable[[], Made]


@dataclass(frozen=True)
class Found:
    """What sharpening a model gave.

    Attributes:
        package: Distribution.
        version: Its version.
        model: What was built.
        reached: Calls of attention that are sharpened.
        missed: Names of modules whose attention is not reached, with the reason.
        neutral: Largest difference of outputs at beta = 1, relative to the largest output.
        changed: The same at beta = 2.
        restored: Whether the outputs are the same bits after `restore`.
    """

    package: str
    version: str
    model: str
    reached: int
    missed: tuple[str, ...]
    neutral: float
    changed: float
    restored: bool


def _of(name: str) -> Any:
    """Import what a dotted name names."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _timm(name: str, **options: Any) -> Callable[[], Made]:
    return lambda: (_of("timm.create_model")(name, **options), torch.randn(1, 3, 64, 64))


def _swin_fused() -> Made:
    switch = _of("timm.layers.set_fused_attn")
    switch(True, experimental=True)
    try:
        return _timm("swin_tiny_patch4_window7_224", img_size=64, window_size=4)()
    finally:
        switch(True)


def _unet() -> Made:
    model = _of("diffusers.UNet2DConditionModel")(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=16,
        attention_head_dim=8, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return model, (torch.randn(1, 4, 8, 8), torch.tensor([3]), torch.randn(1, 5, 16))


def _dit() -> Made:
    model = _of("diffusers.DiTTransformer2DModel")(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8,
        norm_num_groups=2, num_embeds_ada_norm=10,
    )  # fmt: skip
    inputs = {"timestep": torch.tensor([3]), "class_labels": torch.tensor([1])}
    return model, {"hidden_states": torch.randn(1, 4, 8, 8), **inputs}


def _sd3() -> Made:
    model = _of("diffusers.SD3Transformer2DModel")(
        sample_size=8, patch_size=1, in_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=16,
        pooled_projection_dim=16, out_channels=4, pos_embed_max_size=8,
    )  # fmt: skip
    return model, {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "encoder_hidden_states": torch.randn(1, 5, 16),
        "pooled_projections": torch.randn(1, 16),
        "timestep": torch.tensor([3]),
    }


def _esm2() -> Made:
    model = _of("esm.model.esm2.ESM2")(num_layers=2, embed_dim=32, attention_heads=2)
    return model, torch.randint(4, 24, (1, 12))


def _vision() -> Made:
    model = _of("torchvision.models.VisionTransformer")(
        image_size=64, patch_size=16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=32
    )
    return model, torch.randn(1, 3, 64, 64)


def _x_transformers() -> Made:
    decoder = _of("x_transformers.Decoder")(dim=32, depth=2, heads=2, attn_flash=True)
    model = _of("x_transformers.TransformerWrapper")(
        num_tokens=50, max_seq_len=32, attn_layers=decoder
    )
    return model, torch.randint(0, 50, (1, 12))


def _clip() -> Made:
    model = _of("open_clip.model.CLIP")(
        embed_dim=32,
        vision_cfg={"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
        text_cfg={"context_length": 12, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2},
    )
    return model, (torch.randn(1, 3, 64, 64), torch.randint(1, 50, (1, 12)))


CASES: Final = (
    Case("timm", "ViT (vit_tiny_patch16_224)", _timm("vit_tiny_patch16_224", img_size=64)),
    Case("timm", "Swin (swin_tiny_patch4_window7_224)",
         _timm("swin_tiny_patch4_window7_224", img_size=64, window_size=4)),
    Case("timm", "Swin, after set_fused_attn(True, experimental=True)", _swin_fused),
    Case("timm", "EVA-02 (eva02_tiny_patch14_224)",
         _timm("eva02_tiny_patch14_224", img_size=64, patch_size=16)),
    Case("timm", "XCiT (xcit_nano_12_p16_224)", _timm("xcit_nano_12_p16_224")),
    Case("diffusers", "UNet2DConditionModel", _unet),
    Case("diffusers", "DiTTransformer2DModel", _dit),
    Case("diffusers", "SD3Transformer2DModel", _sd3),
    Case("torchvision", "VisionTransformer", _vision),
    Case("fair-esm", "ESM2", _esm2),
    Case("x-transformers", "TransformerWrapper, attn_flash=True", _x_transformers),
    Case("open-clip-torch", "CLIP", _clip),
)  # fmt: skip


def try_case(case: Case) -> Found | None:
    """Sharpen the model of a case; return None if its package is not installed."""
    try:
        installed = version(case.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    torch.manual_seed(0)
    model, inputs = case.make()
    model.eval()
    for weight in model.parameters():
        # Some libraries start from zeros, with which no output depends on attention.
        if not weight.any():
            nn.init.normal_(weight, std=0.1)

    def outputs() -> Tensor:
        torch.manual_seed(1)
        found = model(*inputs) if isinstance(inputs, tuple) else (
            model(**inputs) if isinstance(inputs, dict) else model(inputs)
        )  # fmt: skip
        return torch.cat([each.flatten().float() for each in _tensors(found)])

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be reached is in the table
        before = outputs()
        size = float(before.abs().max())
        differences = []
        for beta in (1.0, 2.0):
            # Without an example, a model of which nothing can be reached is not refused.
            with sharpmax.sharpen(model, Constant(beta)) as sharpened:
                differences.append(float((outputs() - before).abs().max()) / size)
                status = sharpened.status()
        missed = tuple(f"{row.name}: {row.why_not}" for row in status if row.why_not)
        restored = torch.equal(outputs(), before)
    reached = sum(row.why_not is None for row in status)
    neutral, changed = differences
    return Found(case.package, installed, case.model, reached, missed, neutral, changed, restored)


def _tensors(found: Any) -> Iterator[Tensor]:
    """Yield the tensors of whatever a model returns."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, dict):
        yield from _tensors(list(found.values()))
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _tensors(each)


def libraries(context: typer.Context, output: Output = Path("build/reliability/libraries")) -> None:
    """Sharpen small models of other libraries, as far as they are installed.

    Takes seconds. Writes libraries.json to OUTPUT.
    """
    found = [each for case in CASES if (each := try_case(case)) is not None]
    console = Console()
    if not found:
        names = ", ".join(dict.fromkeys(case.package for case in CASES))
        say(console, f"None of these is installed: {names}")
        return
    data = {
        "command": current_command(context),
        "versions": versions(("torch", "transformers")),
        "found": [asdict(each) for each in found],
    }
    path = write_sealed(output / "libraries.json", KIND, data)
    show(console, [libraries_table(path)], [path])


def libraries_table(path: Path) -> Table:
    """Return one row per model: calls reached, modules missed, and what changed."""
    data = read_sealed(path, KIND)
    rows = []
    for entry in data["found"]:
        found = Found(**{**entry, "missed": tuple(entry["missed"])})
        figures = [f"{x:.1e}" for x in (found.neutral, found.changed)]
        same = "yes" if found.restored else "no"
        rows.append(
            [
                f"{found.package} {found.version}",
                plain(found.model),
                str(found.reached),
                str(len(found.missed)),
                *figures,
                same,
            ]
        )
    return Table(
        ["library", "model", "calls reached", "modules named as missed", "change at β = 1",
         "change at β = 2", "restored exactly"],
        rows,
        caption="Small models with random weights. Changes: largest difference of an output, "
        f"relative to the largest output. PyTorch {data['versions']['torch']}. Written by "
        f"`{data['command']}`.",
        words=2,
    )  # fmt: skip
