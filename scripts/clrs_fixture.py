"""Write the strings that the tests compare CLRS-Text with, drawn by dm-clrs's own generator.

Run it in an environment with the complete dm-clrs, which needs TensorFlow, and without sharpmax:

    python -m venv build/clrs
    build/clrs/bin/pip install dm-clrs==2.0.3
    build/clrs/bin/python scripts/clrs_fixture.py
"""

import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path

import clrs

OUTPUT = Path(__file__).parent.parent / "tests/experiments/clrs_text/task/strings.json"
LENGTHS = (4, 9, 16)
SEEDS = (0, 123_456_789)
# Longer strings are stored as hashes.
LONGEST = 600


def strings() -> list[dict[str, object]]:
    """Draw one example per algorithm, length and seed, with and without hints."""
    return [
        {"algorithm": algorithm, "length": length, "seed": seed, "use_hints": use_hints}
        | stored(algorithm, length, seed, use_hints)
        for algorithm in sorted(clrs.CLRS_30_ALGS_SETTINGS)
        for length in LENGTHS
        for seed in SEEDS
        for use_hints in (False, True)
    ]


def stored(algorithm: str, length: int, seed: int, use_hints: bool) -> dict[str, str]:
    """Return the question and the answer, or their hashes."""
    (example,) = clrs.clrs_text.huggingface_generators.clrs_generator(
        {algorithm: [length]}, num_samples=1, use_hints=use_hints, seed=seed
    )
    texts = {name: example[name] for name in ("question", "answer")}
    if sum(map(len, texts.values())) <= LONGEST:
        return texts
    return {
        f"{name}_sha256": hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()
    }


if __name__ == "__main__":
    versions = {"python": platform.python_version()}
    for package in ("dm-clrs", "numpy", "jax", "tensorflow"):
        versions[package] = importlib.metadata.version(package)
    lines = ",\n".join(json.dumps(string) for string in strings())
    OUTPUT.write_text(
        f'{{"versions": {json.dumps(versions)},\n"strings": [\n{lines}\n]}}\n', encoding="utf-8"
    )
