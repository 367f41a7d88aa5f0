"""Figures, tables and the page of a diagnosis: what the methods of `Diagnosis` draw and write."""

from sharpmax.report.diagnosis.figures import draw_critical_lengths, draw_entropy, draw_slopes
from sharpmax.report.diagnosis.page import write_diagnosis_page

__all__ = ["draw_critical_lengths", "draw_entropy", "draw_slopes", "write_diagnosis_page"]
