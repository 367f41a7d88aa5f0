"""Modules for people who build models in PyTorch."""

from sharpmax._extras import require

require("torch", extra="torch", what="sharpmax.nn")

from sharpmax.nn._learned_policy import LearnedPolicy  # noqa: E402  # after the check above
from sharpmax.nn._sharp_attention import SharpAttention  # noqa: E402

__all__ = ["LearnedPolicy", "SharpAttention"]
