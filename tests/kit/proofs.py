"""What tests of proofs and of the command line share: a tiny training script, and ways to prove things about it."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitproof.compare.verdict import Verdict
from bitproof.prove import plan
from bitproof.prove.options import Options
from bitproof.prove.process import MARKER, Finished
from bitproof.prove.prove import prove

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "prove" / "scripts"
TRAIN = SCRIPTS / "train.py"


@dataclass
class Said:
    """What a proof told its watcher."""

    legs: list[str] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def begin(self, name: str, log: Path, total: int | None) -> "Said":
        """Note a leg."""
        del log, total
        self.legs.append(name)
        return self

    def tick(self, elapsed: float, steps: int | None) -> None:
        """Take no notice."""

    def end(self, finished: Finished) -> None:
        """Note how a leg ended."""
        self.endings.append(finished.ending)

    def note(self, text: str) -> None:
        """Note a note."""
        self.notes.append(text)


@dataclass
class Prover:
    """Proves scripts in a test's folder."""

    work: Path
    said: Said = field(default_factory=Said)

    def __call__(
        self, *words: object, script: Path = TRAIN, kill: str = "", resume: str = "--resume", **more: Any
    ) -> Verdict:
        """Prove ``python SCRIPT --out {out} WORDS`` in this process, without the second control unless it is asked for."""
        out = [] if "{out}" in words or "output" in more else ["--out", "{out}"]
        chosen: dict[str, Any] = {
            "command": [sys.executable, str(script), *out, *map(str, words)],
            "resume_args": resume.split(),
            "wanted": [plan.parse(text) for text in kill.split()],
            "work": self.work,
            "control": False,
        }
        return prove(Options(**(chosen | more)), self.said)


def record(trail: Path, *command: object) -> None:
    """Record a command, which must end well."""
    words = [sys.executable, "-m", "bitproof", "record", "-o", str(trail), "--", *map(str, command)]
    subprocess.run(words, check=True, capture_output=True, timeout=120)


@dataclass
class Answer:
    """What the command line answered."""

    status: int
    out: str
    err: str


def bitproof(*words: object, cwd: Path, **more: Any) -> Answer:
    """Run the command line in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "bitproof", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        **more,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


def processes_of(folder: Path) -> list[int]:
    """Return the processes of proofs whose environment names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes() if entry.name.isdecimal() else b""
        except OSError:  # it is gone, or not ours
            continue
        if MARKER.encode() in environment and os.fsencode(folder) in environment:
            found.append(int(entry.name))
    return found


def wait_until(condition: Any, seconds: float = 40.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
