"""Run one leg: start it, watch it, end its whole process tree."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import msgspec
import psutil

from bitproof.errors import LaunchError

MARKER = "BITPROOF_PROOF"
"""Environment variable by which processes of a proof are found, also after their parents are gone."""
_POLL = 0.02
_LAST_LINES = 20
GRACE = 60.0
"""Seconds for a leg to end by itself after a signal that it may handle."""
_KILL_PATIENCE = 10.0

Ending = Literal["ended", "killed", "stopped", "failed", "timed-out"]
ReachedKind = Literal["fault", "stop", "survived"]


class Reached(msgspec.Struct):
    """What a process writes when it is where it was to be cut off."""

    kind: ReachedKind
    """``survived``: it was signalled, and went on for some steps."""
    rank: int
    world_size: int
    step: int
    micro: int
    offset: int = 0
    """Steps of the run that were complete before this leg, as far as it knows."""
    path: str | None = None
    """For a fault during a save: the file left half written."""


def answer(control: Path, kind: str, said: msgspec.Struct) -> None:
    """Answer from inside a leg's process: a file, whole or not at all, since it is looked for all the time."""
    temporary = control / f"saying-{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(said))
    temporary.replace(control / f"{kind}-{os.getpid()}.json")


@dataclass(frozen=True)
class Finished:
    """How a leg ended."""

    ending: Ending
    status: int | None
    reached: Reached | None
    lines: list[str]
    seconds: float
    survived: bool = False
    """It did not end by the signal, and was killed after it."""

    @property
    def how(self) -> str:
        """With what it ended, in words."""
        if self.status is not None and self.status < 0:
            return f"signal {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


@dataclass(frozen=True)
class Start:
    """How to start a leg.

    Args:
        command: program and arguments.
        environment: of the process.
        log: file for everything it prints.
        control: folder through which the processes say where they are.
        marker: of the proof's part that this leg belongs to.
        signal_number: sent at the fault; anything but SIGKILL lets the leg end by itself.
        timeout: seconds after which it is ended; None for never.
        grace: seconds for it to end by itself after a signal.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    control: Path
    marker: str
    signal_number: int = signal.SIGKILL
    timeout: float | None = None
    grace: float = GRACE


def run(start: Start, watch: Callable[[float], None]) -> Finished:
    """Run a leg to its end, its fault or its timeout; no process of it is left afterwards.

    Args:
        start: how to start it.
        watch: called every now and then with the seconds since the start.

    Raises:
        LaunchError: the program could not be started.
    """
    start.control.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with start.log.open("wb") as log:
        process = _popen(start, log)
        try:
            ending, reached, survived = _follow(process, start, begun, watch)
        finally:
            kill_tree(start.marker, process.pid)
            process.wait()
    seconds = time.monotonic() - begun
    return Finished(ending, process.returncode, reached, last_lines(start.log), seconds, survived)


def _popen(start: Start, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            list(start.command),
            env={**start.environment, MARKER: start.marker},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: an argument with a null byte
        msg = f"cannot start the command {start.command[0]!r}: {getattr(error, 'strerror', None) or error}"
        raise LaunchError(msg) from error


def _follow(
    process: "subprocess.Popen[bytes]", start: Start, begun: float, watch: Callable[[float], None]
) -> tuple[Ending, Reached | None, bool]:
    while True:
        status = process.poll()
        said = _read_control(start.control)
        fault = next((r for r in said if r.kind == "fault"), None)
        if fault is not None:
            return "killed", fault, _strike(process, start, begun, watch, torn=fault.path is not None)
        if said and len({r.rank for r in said}) >= said[0].world_size:
            return "stopped", said[0], False
        if status is not None:
            return ("ended" if status == 0 else "failed"), None, False
        elapsed = time.monotonic() - begun
        if start.timeout is not None and elapsed > start.timeout:
            return "timed-out", None, False
        watch(elapsed)
        time.sleep(_POLL)


def _strike(
    process: "subprocess.Popen[bytes]", start: Start, begun: float, watch: Callable[[float], None], *, torn: bool
) -> bool:
    """Carry out the fault; tell whether the leg outlived a signal that it could have ended by."""
    if start.signal_number == signal.SIGKILL or torn:
        kill_tree(start.marker, process.pid)
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, start.signal_number)
    (start.control / "go").touch()
    deadline = time.monotonic() + start.grace
    while time.monotonic() < deadline:
        # A shell or a launcher that started the training may end before it does.
        if process.poll() is not None and not _tree(start.marker, None):
            return False
        if any(r.kind == "survived" for r in _read_control(start.control)):
            break
        watch(time.monotonic() - begun)
        time.sleep(_POLL)
    return True


def _read_control(control: Path) -> list[Reached]:
    return [msgspec.json.decode(path.read_bytes(), type=Reached) for path in sorted(control.glob("reached-*.json"))]


def kill_tree(marker: str, root: int | None = None) -> None:
    """End every process of a proof: those below ``root``, and those that carry its marker or one that begins with it."""
    deadline = time.monotonic() + _KILL_PATIENCE
    while time.monotonic() < deadline:
        found = [p for p in _tree(marker, root) if p.pid != os.getpid()]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=0.2)


def _tree(marker: str, root: int | None) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    if root is not None:
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(root)
            found |= {p.pid: p for p in [top, *top.children(recursive=True)]}
    for process in psutil.process_iter():
        # Another user's process, or one that is just gone, is none of ours.
        with contextlib.suppress(psutil.Error, OSError):
            carried = process.environ().get(MARKER, "")
            if carried == marker or carried.startswith(f"{marker}."):
                found[process.pid] = process
    return [p for p in found.values() if _alive(p)]


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def last_lines(log: Path) -> list[str]:
    """Return the last lines that a leg printed."""
    text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-_LAST_LINES:]
