"""Settings of a test run that have to be in force before any framework is imported."""

import gc
import os
from pathlib import Path

# On some virtual machines oneDNN dispatches bfloat16 products to instructions that the processor
# does not have. It reads this once, so it is set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Workers that share a machine must not start as many threads each as it has cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without a GPU, Triton interprets its kernels. It reads this when it is imported.
if not any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Kernels in the language of Triton: without it they cannot be imported, and they hold no examples.
collect_ignore = [
    f"src/sharpmax/_attention/impl/triton/{name}.py" for name in ("backward", "forward", "tiles")
]

# Figures are written to files, never shown.
os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_collection_finish() -> None:
    # Frameworks leave millions of objects that live as long as the process. Every full collection
    # would look at all of them, and benchmarks collect before each timing.
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    # What stays frozen until the end, Triton would report as leaked.
    gc.unfreeze()
