"""``bitproof record`` steps aside: the command's status, signals and output are its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.proofs import wait_until

WAITS = """
import pathlib, signal, sys, time
def handle(number, frame):
    print("saved on", signal.Signals(number).name, flush=True)
    sys.exit(9)
for name in ("SIGTERM", "SIGUSR1", "SIGHUP"):
    signal.signal(getattr(signal, name), handle)
pathlib.Path("started").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    """A scheduler's signal reaches the training, which decides, and its status comes back."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bitproof", "record", "-o", "a.trail", "--", sys.executable, "-c", WAITS],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "started").exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == f"saved on {number.name}\n"
    assert process.returncode == 9
    assert "Traceback" not in err
