"""CLRS-Text as a task for lm-evaluation-harness, with one metric per length.

Give this folder to the harness to use the tasks `clrs_text` and `clrs_text_hints`:

    lm_eval --model hf --model_args pretrained=... --tasks clrs_text --include_path "$(python -c
    'from experiments.clrs_text.task import harness; print(harness.FOLDER)')"

Choose other questions with, for example, `--metadata '{"algorithms": ["bfs"], "lengths": [8, 128],
"each": 100, "seed": 1}'`.
"""

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent
"""The folder with the task descriptions, for `--include_path`."""
