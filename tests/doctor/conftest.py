"""Fixtures of the tests of the doctor."""

from pathlib import Path

import pytest

from kit.clinic import Clinic


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    """Examine what trains in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    return Clinic(tmp_path)
