"""Fold a calibration into the weights of a model."""
