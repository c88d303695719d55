"""A proof that is interrupted leaves no process and no half state."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.proofs import processes_of, wait_until

TRAINS_FOR_EVER = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path("runs")
folder.mkdir(exist_ok=True)
(folder / "mine").write_text("changed by the run")
(folder / "new").write_text("new")
# A child that has left its parent's session, and one that ignores polite signals, as loaders' workers may.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); signal.signal(2, signal.SIG_IGN); time.sleep(600)"])
(folder / "started").write_text(str(os.getpid()))
time.sleep(600)
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    """Start a proof of a command that never ends, with an output folder that has something in it."""
    (folder / "runs").mkdir()
    (folder / "runs" / "mine").write_text("mine")
    (folder / "runs.bitproof-old").mkdir()
    (folder / "runs.bitproof-old" / "mine").write_text("mine too")
    (folder / "train.py").write_text(TRAINS_FOR_EVER)
    process = subprocess.Popen(
        [sys.executable, "-m", "bitproof", "prove", "--output", "runs", "--", sys.executable, "train.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((folder / "runs" / "started").exists)
    assert processes_of(folder)
    return process


def assert_clean(folder: Path) -> None:
    """Check that no process is left and that the folder is what it was."""
    wait_until(lambda: not processes_of(folder))
    wait_until(lambda: [p.name for p in (folder / "runs").iterdir()] == ["mine"])
    wait_until(lambda: (folder / "runs" / "mine").read_text() == "mine")
    assert (folder / "runs.bitproof-old" / "mine").read_text() == "mine too"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal(number: signal.Signals, tmp_path: Path) -> None:
    """A signal ends the proof with one message and its status, after everything is in order."""
    process = start(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert not processes_of(tmp_path)
    assert_clean(tmp_path)
    assert process.returncode == 128 + number
    assert out == ""
    assert f"interrupted by {number.name}; no process was left behind" in err
    assert "Traceback" not in err


def test_ctrl_c_twice(tmp_path: Path) -> None:
    """A second Ctrl-C, and a third, do not disturb the cleaning up."""
    process = start(tmp_path)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert_clean(tmp_path)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_killed(tmp_path: Path) -> None:
    """When the proof itself is killed, its guard ends every process and puts the folder back."""
    process = start(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert_clean(tmp_path)


def test_several_at_once(tmp_path: Path) -> None:
    """Trials that run at the same time all end with the proof."""
    (tmp_path / "train.py").write_text(
        "import sys, time, pathlib\n"
        "import torch\n"
        "w = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for step in range(3):\n"
        "    w.sum().backward(); optimizer.step()\n"
        "if 'trial' in sys.argv[1]:\n"
        "    pathlib.Path(sys.argv[1], 'started').touch(); time.sleep(600)\n"
    )
    train = [sys.executable, "train.py", "{out}"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bitproof",
            *["prove", "--kill", "1", "--kill", "2", "-j2", "--signal", "USR1", "--"],
            *train,
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # SIGUSR1 ends both legs that are cut off; their resumed legs train on, and then sleep.
    wait_until(lambda: len(list(tmp_path.glob(".bitproof/*/trial-*/out/started"))) == 2, 120)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert not processes_of(tmp_path)
    assert process.returncode == 130
    assert "Traceback" not in err
