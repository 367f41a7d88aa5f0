"""Measure how the attention of a model spreads as its inputs grow."""
