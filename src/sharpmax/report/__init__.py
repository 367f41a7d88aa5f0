"""Figures and tables of what was measured."""
