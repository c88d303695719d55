"""The benchmarks still run; what they print on a busy machine is nobody's figure."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("bench_fingerprint.py", [], "fingerprint / reading = "),
        ("bench_start.py", [], "bitproof --help: "),
        ("bench_recorder.py", ["--only", "mlp"], "recorded / plain = "),
        ("bench_ranks.py", [], "an agreement at a batch boundary takes "),
    ],
)
def test_benchmark_runs(name: str, options: list[str], said: str) -> None:
    """Each benchmark runs through in its tiny form and prints its figure."""
    command = [sys.executable, str(BENCHMARKS / name), "--tiny", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert said in done.stdout
