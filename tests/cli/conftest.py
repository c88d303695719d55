"""Fixtures of the tests of the command line."""

import sys
from pathlib import Path

import pytest

from kit.proofs import TRAIN, record


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trail of the tiny training script's uninterrupted run: how it saves does not change its steps."""
    folder = tmp_path_factory.mktemp("reference")
    record(folder / "a.trail", sys.executable, TRAIN, "--out", folder / "out")
    return folder / "a.trail"
