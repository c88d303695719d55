"""Fixtures for all tests."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.live import Lab


@pytest.fixture
def lab(tmp_path: Path) -> "Lab":
    """Run training functions in processes of their own, with the real recorder."""
    from kit.live import Lab

    return Lab(tmp_path)
