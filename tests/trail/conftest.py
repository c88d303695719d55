"""Real recorded runs, in this process, in a forked one and below the command line."""

import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import bitproof
from bitproof.trail.reader import Leg, read_trail

SOURCE = Path(bitproof.__file__).parents[1]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Keep OpenMP from starting threads, which a forked child would wait for in vain."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Start each test from the same generators, and hand back the default settings."""
    seed_all(0)
    yield
    torch.set_default_dtype(torch.float32)


def seed_all(seed: int) -> None:
    """Seed python's, NumPy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


class Recorded:
    """A trail that was recorded in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, train: Callable[[], object]) -> Leg:
        """Record ``train()`` as a further leg and return that leg."""
        with bitproof.recording(self.path, append=True):
            train()
        return read_trail(self.path).legs[-1]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """A trail to record into."""
    return Recorded(tmp_path / "a.trail")


@dataclass(frozen=True)
class Child:
    """A forked process under way."""

    pid: int
    output: Path

    def wait(self, seconds: float = 60) -> int:
        """Wait for the end; the exit status, negative for a signal."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        pytest.fail(f"the child did not end within {seconds} s:\n{self.said()}")

    def said(self) -> str:
        """What it has printed so far."""
        return self.output.read_text()


@pytest.fixture
def fork(tmp_path: Path) -> Callable[[Callable[[], object]], Child]:
    """Start a function in a real process that has torch imported already."""
    import torch._dynamo  # the first optimizer imports it, in each child anew otherwise

    assert torch._dynamo
    numbers = iter(range(1_000))

    def start(function: Callable[[], object]) -> Child:
        output = tmp_path / f"child-{next(numbers)}.txt"
        output.touch()
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the ones here are pytest's, and idle.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return Child(pid, output)
        status = 1
        try:
            target = os.open(output, os.O_WRONLY | os.O_APPEND)
            os.dup2(target, 1)
            os.dup2(target, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            signal.setitimer(signal.ITIMER_REAL, 0)
            function()
            status = 0
        except BaseException:  # noqa: BLE001  # the child must not return into pytest
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    return start


@dataclass(frozen=True)
class Result:
    """What a command left."""

    status: int
    out: str
    err: str


class Cli:
    """The command line in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a command: this checkout importable, one OpenMP thread."""
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | more

    def start(self, *arguments: object, **more: str) -> "subprocess.Popen[str]":
        """Start ``bitproof ARGUMENTS``."""
        return subprocess.Popen(
            [sys.executable, "-c", "from bitproof.cli import main; main()", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: object, **more: str) -> Result:
        """Run ``bitproof ARGUMENTS`` to its end."""
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=120)
        return Result(process.returncode, out, err)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line, run in ``tmp_path``."""
    return Cli(tmp_path)
