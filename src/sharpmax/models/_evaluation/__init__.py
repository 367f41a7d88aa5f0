"""Evaluate models on long prompts, and judge whether a calibration helps and why."""
