"""Diagnosis, calibration and evaluation of SmolLM2-135M-Instruct."""
