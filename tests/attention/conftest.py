"""Which variants of a common test the slowest implementations take."""

from __future__ import annotations

import os
from zlib import crc32

import pytest

from attention_cases import SLOW

SLOWEST = 60
"""Implementations with so few examples compile for seconds in each test, so they take turns."""

THOROUGH = ("test_implementations_agree", "test_gradients_agree_with_the_specification")
"""Tests that draw problems of every kind, which all implementations take."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one variant of each test, with one of the slowest implementations.

    `SHARPMAX_EVERY_VARIANT=1 pytest tests/attention` runs all of them with all implementations.
    """
    if os.environ.get("SHARPMAX_EVERY_VARIANT"):
        return
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = getattr(item, "originalname", "")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if SLOW.get(parameters.get("impl"), 1) >= SLOWEST and name not in THOROUGH:
            variants.setdefault(name, []).append(item)
    left = set()
    for name, of_test in variants.items():
        kept = crc32(name.encode()) % len(of_test)
        left |= {item for k, item in enumerate(of_test) if k != kept}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]
