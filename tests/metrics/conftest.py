from __future__ import annotations

import pytest
from jaxtyping import config


@pytest.fixture
def refusals(monkeypatch):
    """Leaves wrong shapes to the library's own checks: the annotations would refuse them first."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)
