"""CLRS-Text as a task for lm-evaluation-harness, with one metric for each length.

The harness finds the tasks `clrs_text` and `clrs_text_hints` when it is given this folder:

    lm_eval --model hf --model_args pretrained=... --tasks clrs_text --include_path "$(python -c
    'from experiments.clrs_text.task import harness; print(harness.FOLDER)')"

Other questions are asked for with, say, `--metadata '{"algorithms": ["bfs"], "lengths": [8, 128],
"each": 100, "seed": 1}'`.
"""

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent
"""Where the descriptions of the tasks are, for `--include_path`."""
