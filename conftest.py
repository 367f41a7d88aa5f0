"""Settings of a test run that have to be in force before any framework is imported."""

import os

# On some virtual machines oneDNN dispatches bfloat16 products to instructions that the processor
# does not have. It reads this once, so it is set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Workers that share a machine must not start as many threads each as it has cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Figures are written to files, never shown.
os.environ.setdefault("MPLBACKEND", "Agg")
