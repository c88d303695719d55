"""The example with a Run, killed at every step, every micro-step and in every file: the slow proof."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "run_digits.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("fault", "size", "trials"),
    [
        (["--kill", "every"], ["--epochs", "2", "--limit", "400", "--save-every", "1"], 8),
        (["--kill", "during-save:every"], ["--epochs", "1", "--limit", "400", "--save-every", "1"], 10),
        (["--crashes", "3"], ["--epochs", "3", "--limit", "600", "--save-every", "2"], 1),
    ],
)
def test_a_run_is_identical_wherever_it_is_killed(
    tmp_path: Path, fault: list[str], size: list[str], trials: int
) -> None:
    """A loop with a scaler, EMA, accumulation, StepLR and dropout that has no line about resuming."""
    command = [sys.executable, "-m", "bitproof", "prove", "--json", "--work", str(tmp_path / "work"), *fault]
    command += ["--", sys.executable, str(SCRIPT), "--out", "{out}", *size]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "identical"
    assert max(1, len(verdict["trials"])) == trials
