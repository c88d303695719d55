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


def test_folders_of_a_trail_that_was_not_recorded_are_removed(tmp_path: Path) -> None:
    """Those that were made for it, and none that was there or that the command has put something into."""

    def record(where: str, code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bitproof", "record", "-o", where, "--", sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "here").mkdir()
    answer = record("here/a/b.trail", "import torch")
    assert (answer.returncode, list((tmp_path / "here").iterdir())) == (3, [])
    assert "imported torch and took no optimizer step" in answer.stderr
    record("here/a/b.trail", "open('here/a/model.pt', 'w')")
    assert [path.name for path in (tmp_path / "here" / "a").iterdir()] == ["model.pt"]
    record("here/a/b.trail", "open('here/a/b.trail/model.pt', 'w')")
    assert (tmp_path / "here" / "a" / "b.trail" / "model.pt").exists()


def test_folders_are_removed_after_a_command_that_does_not_start(tmp_path: Path) -> None:
    """A script without a first line that names its program."""
    (tmp_path / "script").write_text("no program")
    (tmp_path / "script").chmod(0o755)
    command = [sys.executable, "-m", "bitproof", "record", "-o", "a/b.trail", "--", "./script"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "cannot start the command" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["script"]
