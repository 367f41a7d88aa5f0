"""Data for experiments: what is asked, and what the answer is. No models."""
