"""Attention with a temperature policy: `api` checks and dispatches, `impl` holds the ways."""

from sharpmax._attention.api import attention, attention_statistics

__all__ = ["attention", "attention_statistics"]
