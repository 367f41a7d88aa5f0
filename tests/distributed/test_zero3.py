"""The verbs on a model that DeepSpeed's ZeRO-3 spreads over two ranks, against one process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import model_calls

TESTS = Path(__file__).parents[1]

PROGRAM = """
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig

import model_calls
import sharpmax
from models.test_ranks import assert_alike

torch.set_num_threads(1)
deepspeed.init_distributed("gloo")
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}
whole = model_calls.load(Path(sys.argv[1]), "whole")
kept = HfDeepSpeedConfig(config)  # from_pretrained looks for it
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model = deepspeed.initialize(model=model, config=config)[0].module.eval()
assert {weight.numel() for weight in model.parameters()} == {0}
ids, found = model_calls.tokens(2, 24), []
for each in (model, whole):
    with torch.no_grad(), sharpmax.sharpen(each, model_calls.POLICY) as handle:
        found.append(each(ids).logits)
        assert all(row.why_not is None for row in handle.status())
torch.testing.assert_close(*found)
ours = model_calls.verbs(model)
with sharpmax.distributed.alone():
    one = model_calls.verbs(whole)
assert ours["fold"].startswith("CannotFoldError")
for verb in ("diagnose", "calibrate", "evaluate"):
    assert_alike(ours[verb], one[verb])
print("rank", dist.get_rank(), "agrees")
"""


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="the gate is without DeepSpeed")
def test_zero3_gives_what_one_process_gives(tmp_path: Path) -> None:
    model_calls.llama().save_pretrained(tmp_path / "model")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = [str(TESTS), str(TESTS.parent), str(TESTS.parent / "src"), *sys.path]
    done = subprocess.run(
        [sys.executable, *ranks, str(tmp_path / "program.py"), str(tmp_path / "model")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("agrees") == 2
