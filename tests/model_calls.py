"""What models do on the ranks of the tests: functions that another process can import."""

from __future__ import annotations

import io
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from transformers import (
    AutoModelForCausalLM,
    DistributedConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

import sharpmax
from calibrated_model import distance, some_windows, whole
from calibrated_model import tiny as spoilt
from sharpmax.cli import main
from sharpmax.models import Splits, text_splits
from sharpmax.models._share import share_of
from sharpmax.policies import Constant, Exponential
from tiny_models import SETTINGS, tokenizer

GUIDE = Path(__file__).parents[1] / "docs/scaling.md"
TEXT = "It was the best of times. " * 40
POLICY = Exponential(torch.tensor([0.2, 0.5, 0.9, 1.3]))


def llama(**settings: Any) -> LlamaForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**SETTINGS, **settings})).eval()
    for parameter in model.parameters():
        # Large enough that heads differ.
        parameter.data *= 8.0 if parameter.ndim > 1 else 1.0
    return model


def tokens(count: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 120, (count, length), generator=generator)


# Sharing itself.


def squares(items: list[float]) -> list[float]:
    return share_of(lockstep=False).map(lambda x: 1.0 / x, items)


def once(path: Path) -> str:
    def write() -> str:
        path.write_text(str(dist.get_rank()), encoding="utf-8")
        return f"from {dist.get_rank()}"

    return share_of(lockstep=False).once(write)


# The verbs. Each returns plain data, and the number of forward passes of this process.


def _counted(model: nn.Module) -> list[int]:
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    return passes


def diagnose(inputs: Any, options: dict[str, Any]) -> tuple[dict[str, Any], list[float], int]:
    model = llama()
    passes, told = _counted(model.model), []
    found = sharpmax.diagnose(
        model, inputs, on_progress=lambda done, of: told.append(done / of), **options
    )
    return found.to_dict(), told, len(passes)


class Mixed(nn.Module):
    """Two layers of attention that are not of transformers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.MultiheadAttention(16, 2, batch_first=True)
        self.second = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 9 * self.first(x, x, x, need_weights=False)[0]
        return x + self.second(x, x, x, need_weights=False)[0]


def _rows(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return list(torch.randn(3, 1, length, 16, generator=generator))


def diagnose_module(count: int) -> dict[str, Any]:
    given = {length: _rows(length)[:count] for length in (8, 16, 32)}
    return sharpmax.diagnose(Mixed().eval(), given).to_dict()


def calibrate(seed: int, options: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    """Mend a head that was flattened, with ordinary text as a guard."""
    model = spoilt(1, 1, 0.4)
    passes, told = _counted(model), []
    whole()  # made before the first pass
    data, text = (
        Splits(*(some_windows(n, seed + n) for n in sizes)) for sizes in ((5, 6, 3), (3, 2, 2))
    )
    settings: dict[str, Any] = {
        "steps": 12, "tolerance": 10.0, "shrink": 1e-6, "learning_rate": 0.15, "text_weight": 0.01,
    } | options  # fmt: skip
    found = sharpmax.calibrate(
        model, data, distance, text=text, on_progress=told.append, **settings
    )
    return found.to_dict(), len(passes), len(told)


def _distance(model: Any, items: Any) -> Tensor:
    return torch.stack([(model(x)[:, 0] - y).square().mean() for x, y in items])


def calibrate_module() -> dict[str, Any]:
    items = [(x, x[:, -1]) for n in (8, 12, 16) for x in _rows(n)]
    splits = Splits(items[:3], items[3:6], items[6:])
    settings: Any = {"tolerance": float("inf"), "steps": 3, "flatten": True}
    return sharpmax.calibrate(Mixed().eval(), splits, _distance, **settings).to_dict()


def broken_on(rank: int) -> None:
    """Fit an objective that fails on one rank."""

    def loss(model: Any, windows: Any) -> Tensor:
        if dist.get_rank() == rank:
            raise ArithmeticError("no such number")
        return sharpmax.models.text_loss(model, windows)

    splits = text_splits([tokens(1, 300)[0].tolist()], 24)
    sharpmax.calibrate(llama(), splits, loss, tolerance=float("inf"), steps=2)


def evaluate(path: Path | None, options: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    model = llama()
    passes, told = _counted(model), []
    settings: dict[str, Any] = {
        "tasks": ["passkey", "text"], "lengths": [120], "wordings": ["usual"],
        "questions": 6, "contexts": 3, "windows": 3, "controls": False,
        "changes": {"sharp": Constant(1.5)},
    }  # fmt: skip
    found = sharpmax.evaluate(
        model, tokenizer(), TEXT, path=path, on_progress=told.append, **settings | options
    )
    return found.to_dict(), len(passes), len(told)


def evaluate_module() -> dict[str, Any]:
    def metric(model: Any, items: Any) -> list[float]:
        return [-float(model(x).square().mean()) for x in items]

    data = {n: _rows(n) for n in (8, 16)}
    changes = Constant(2.0)
    return sharpmax.evaluate(Mixed().eval(), metric=metric, data=data, changes=changes).to_dict()


def command(folder: Path, arguments: list[str]) -> tuple[Any, str, str]:
    """Run a command as torchrun does; return its code, and what it printed."""
    said, wrong = io.StringIO(), io.StringIO()
    ranks = {"RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size(), "MASTER_ADDR": "here"}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(wrong):
        patch.chdir(folder)
        for name, value in ranks.items():
            patch.setenv(name, str(value))
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
    return exit_.value.code, said.getvalue(), wrong.getvalue()


def diagnose_alone(inputs: Tensor) -> dict[str, Any] | None:
    with sharpmax.distributed.alone():
        if dist.get_rank() == 1:
            return diagnose(inputs, {"lengths": [16, 32]})[0]
    return None


# Models that are spread over ranks.


def load(folder: Path, kind: str, **options: Any) -> Any:
    if kind == "tensor parallel":
        options["distributed_config"] = DistributedConfig(tp_size=2, tp_plan="auto")
    elif kind == "fsdp of transformers":
        options["distributed_config"] = DistributedConfig(fsdp_size=2)
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    if kind == "fully_shard":
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def sharpened(folder: Path, kind: str) -> tuple[Tensor, Tensor, Tensor, list[Any]]:
    """The logits without and with a policy, and the gradient by its parameters per head."""
    model, ids = load(folder, kind), tokens(2, 24)
    reference = torch.tensor([0.2, 0.5, 0.9, 1.3], requires_grad=True)
    with torch.no_grad():
        plain = model(ids).logits
    with sharpmax.sharpen(model, Exponential(reference)) as handle:
        logits = model(ids).logits
        logits.square().mean().backward()
        status = [(row.index, row.name, row.heads, row.why_not) for row in handle.status()]
    assert reference.grad is not None
    return plain, logits.detach(), reference.grad, status


def _attempt(function: Any) -> Any:
    try:
        return function()
    except (sharpmax.models.CannotFoldError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"


def verbs_on_ranks(folder: Path, kind: str) -> dict[str, Any]:
    return verbs(load(folder, kind))


def verbs(model: Any) -> dict[str, Any]:
    """What diagnose, calibrate and evaluate find, and what fold says."""
    splits = text_splits([tokens(1, 300)[0].tolist()], 24)
    asked: dict[str, Any] = {
        "tasks": ["passkey", "text"], "lengths": [120], "wordings": ["usual"], "questions": 2,
        "contexts": 2, "windows": 2, "controls": False, "changes": Constant(1.5),
    }  # fmt: skip
    settings: dict[str, Any] = {"steps": 2, "tolerance": 9.0, "family": "entropy+gain"}
    mine = sharpmax.models.Calibration.of(model, {1: Constant(1.5)})
    return {
        "diagnose": _attempt(
            lambda: sharpmax.diagnose(model, tokens(2, 32), lengths=[16, 32]).to_dict()
        ),
        "calibrate": _attempt(lambda: sharpmax.calibrate(model, splits, **settings).to_dict()),
        "evaluate": sharpmax.evaluate(model, tokenizer(), TEXT, **asked).to_dict(),
        "fold": _attempt(lambda: str(sharpmax.fold(model, mine))),
    }


# Sequences that are spread over ranks.

LENGTH = 32


def read_whole(folder: Path) -> tuple[Tensor, Tensor]:
    model, ids = load(folder, "whole"), tokens(1, LENGTH)
    with sharpmax.sharpen(model, POLICY):
        logits = model(ids).logits
    return logits.detach(), _gradient(model, logits, ids)


def _gradient(model: Any, logits: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(logits[0], targets[0], reduction="sum") / LENGTH
    return torch.autograd.grad(loss, model.model.layers[0].self_attn.q_proj.weight)[0]


def read_in_parts(folder: Path, by_torch: bool) -> tuple[Tensor, Tensor, Tensor, str]:
    """Read one sequence as the guide says; return logits, their positions, a gradient, a refusal.

    `by_torch`: within PyTorch's own context, which shards the tokens.
    """
    guide = GUIDE.read_text(encoding="utf-8")
    script = guide[guide.index("from transformers import AttentionInterface") :]
    attention, read = script[: script.index("```")].split("\n\ntokens = ")
    model, ids, places = load(folder, "whole"), tokens(1, LENGTH), torch.arange(LENGTH)[None]
    names = {"sharpmax": sharpmax, "policy": POLICY, "model": model, "length": LENGTH}
    names["tokens"] = ids
    exec(attention, names)
    with ExitStack() as stack:
        if by_torch:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            parts = {"buffers": [ids, places], "buffer_seq_dims": [1, 1]}
            stack.enter_context(context_parallel(mesh, **parts))
            logits = model(ids, position_ids=places, use_cache=False).logits
        else:
            exec(f"tokens = {read}", names)
            ids, places, logits = (names[name] for name in ("tokens", "places", "logits"))
        gradient = _gradient(model, logits, ids)
        dist.all_reduce(gradient)
        model.set_attn_implementation("sdpa")
        with sharpmax.sharpen(model, POLICY):
            refusal = str(_attempt(lambda: model(ids, position_ids=places, use_cache=False)))
        return logits.detach(), places[0].clone(), gradient, refusal.partition(": ")[2]
