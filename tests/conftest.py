"""What all tests share: the frameworks and the settings of hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from frameworks import Framework

settings.register_profile(
    "sharpmax",
    deadline=None,  # compilation makes the first example slow
    derandomize=True,  # a gate has to give the same answer twice
    max_examples=40,
    # The fixture only names a framework: nothing in it needs to be made anew for each example.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("sharpmax")


@pytest.fixture(params=["numpy", "torch", "jax"])
def framework(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)
