"""Write what the tests compare CLRS-Text with: strings of dm-clrs itself, by its own generator.

It is run with the whole of dm-clrs, which brings TensorFlow, and without sharpmax:

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
# Longer strings are kept by their hash.
LONGEST = 600


def strings() -> list[dict[str, object]]:
    """An example of each algorithm, length and seed, with and without hints."""
    return [
        {"algorithm": algorithm, "length": length, "seed": seed, "use_hints": use_hints}
        | kept(algorithm, length, seed, use_hints)
        for algorithm in sorted(clrs.CLRS_30_ALGS_SETTINGS)
        for length in LENGTHS
        for seed in SEEDS
        for use_hints in (False, True)
    ]


def kept(algorithm: str, length: int, seed: int, use_hints: bool) -> dict[str, str]:
    """The question and the answer, or their hashes."""
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
