"""Experiments: what is claimed about sharpness, measured."""
