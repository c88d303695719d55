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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_are_identical_under_torchrun(tmp_path: Path, ranks: int) -> None:
    """Killed as a tree after some step, all ranks go on from the same checkpoint, each with its own noise."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, "-m", "bitproof", "prove", "--json", "--no-control", "--work", str(tmp_path / "work")]
    command += ["--", *torchrun, str(SCRIPT.with_name("run_ddp.py")), "--out", "{out}", "--batch-size", "96"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "identical"
    assert verdict["seams"][0]["resumed_at"]["step"] > 0
