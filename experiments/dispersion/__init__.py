"""Dispersion: the largest softmax coefficient of a bounded row falls as the row grows."""
