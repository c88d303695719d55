"""A training script whose checkpoint holds the loader's state, killed and signalled."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
START_LIMIT = 60  # seconds: a loaded machine takes long to import torch


def start(out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the script in a process group of its own."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--out", str(out), *arguments]
    return subprocess.Popen(command, start_new_session=True)


def run(out: Path, *arguments: str) -> None:
    """Run the script to its end."""
    assert start(out, *arguments).wait(START_LIMIT) == 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until the condition holds while the process runs."""
    end = time.monotonic() + START_LIMIT
    while not condition():
        assert process.poll() is None, "the script ended early"
        assert time.monotonic() < end, "the script takes too long"
        time.sleep(0.02)


def losses(out: Path) -> dict[int, str]:
    """Each step's loss, exact; a step that was redone must have the same."""
    found: dict[int, str] = {}
    for line in (out / "losses.txt").read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"step {step} was redone differently"
    return found


def assert_same_run(one: Path, other: Path) -> None:
    """Fail unless both runs have the same losses and the same last weights, bit for bit."""
    assert losses(one) == losses(other)
    first, second = (torch.load(out / "weights.pt", weights_only=True) for out in (one, other))
    for name, weight in first.items():
        assert torch.equal(weight.view(torch.int32), second[name].view(torch.int32))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run, without workers."""
    out = tmp_path_factory.mktemp("reference")
    run(out)
    return out


@pytest.mark.parametrize("workers", ["0", "3"])
def test_prove_says_identical(tmp_path: Path, workers: str) -> None:
    """`bitproof prove` kills the script in epoch 1 with 2 workers, resumes it with 0 and with 3, and says identical."""
    resume = f"--resume-args=--resume --workers {workers}"
    options = ["--json", "--quiet", "--kill", "17", "--work", str(tmp_path), resume]
    script = [sys.executable, "-W", "ignore", str(SCRIPT), "--out", "{out}", "--workers", "2"]
    command = [sys.executable, "-m", "bitproof", "prove", *options, "--", *script]
    found = subprocess.run(command, capture_output=True, timeout=4 * START_LIMIT, check=False)
    answer = json.loads(found.stdout)

    assert answer["verdict"] == "identical"
    assert found.returncode == 0
    assert answer["steps"] == {"reference": 24, "compared": 9, "identical": 9}
    assert [(seam["killed_after"]["step"], seam["resumed_at"]["step"]) for seam in answer["seams"]] == [(17, 15)]


def test_killed_in_the_middle_of_an_epoch(tmp_path: Path, reference: Path) -> None:
    """SIGKILL with 2 workers in epoch 1, resumed with 3 of them: the same losses and weights."""
    killed = start(tmp_path, "--workers", "2", "--step-seconds", "0.02")
    log = tmp_path / "losses.txt"
    wait_for(lambda: log.exists() and log.read_text().count("\n") >= 17, killed)
    killed.kill()
    killed.wait()
    run(tmp_path, "--resume", "--workers", "3")

    assert_same_run(tmp_path, reference)


def test_signal_to_the_process_group(tmp_path: Path, reference: Path) -> None:
    """SIGTERM to all processes, while workers are in a slow sample: the checkpoint is written, and good."""
    process = start(tmp_path, "--workers", "2", "--sample-seconds", "0.25", "--save-every", "1000")
    log = tmp_path / "losses.txt"
    wait_for(lambda: log.exists() and log.read_text().count("\n") >= 1, process)
    os.killpg(process.pid, signal.SIGTERM)

    assert process.wait(START_LIMIT) == 0
    assert (tmp_path / "checkpoint.pt").exists()
    assert 1 < len(losses(tmp_path)) < 24
    run(tmp_path, "--resume")
    assert_same_run(tmp_path, reference)
