"""Figures of the documents about SmolLM2."""

from __future__ import annotations

from pathlib import Path

from experiments.smollm2.tables import load
from sharpmax.report.calibration.page import draw_calibration
from sharpmax.report.diagnosis.page import draw_diagnosis

__all__ = ["figures"]


def figures(results: Path) -> list[Path]:
    """Draw all figures into the folder of the results.

    Args:
        results: A folder with diagnosis.json, evaluation.json and families/*.json.

    Returns:
        The files.
    """
    diagnosis, evaluation, calibrations = load(results)
    drawn = draw_diagnosis(results, diagnosis)
    drawn |= draw_calibration(results, evaluation, calibrations)
    return list(drawn.values())
