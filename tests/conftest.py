"""Fixtures for all tests."""

from pathlib import Path

import pytest


@pytest.fixture
def lab(tmp_path: Path):
    """Run training functions in processes of their own, with the real recorder."""
    from kit.live import Lab

    return Lab(tmp_path)
