"""The benchmark of the data layer runs, with small sizes."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_data.py"


@pytest.mark.slow
def test_tiny(tmp_path: Path) -> None:
    """Every part prints its row and the table is written."""
    table = tmp_path / "data.md"
    subprocess.run([sys.executable, str(BENCHMARK), "--tiny", "--write", str(table)], check=True, timeout=280)

    assert table.read_text(encoding="utf-8").count("\n| ") >= 18
