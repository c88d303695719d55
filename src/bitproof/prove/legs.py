"""Run the legs of a proof, each recorded, watched and given its orders."""

import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bitproof.compare.verdict import Reason, Trails, Verdict
from bitproof.prove import outputs
from bitproof.prove.options import Options
from bitproof.prove.orders import Orders, Touched
from bitproof.prove.process import Finished, Start, run
from bitproof.trail.launch import child_environment
from bitproof.trail.reader import Trail, notes, read_trail
from bitproof.trail.records import Event


class LegWatcher(Protocol):
    """Is told how one leg goes."""

    def tick(self, elapsed: float, steps: int | None) -> None:
        """It has taken ``steps`` steps after ``elapsed`` seconds; None where they are not counted."""

    def end(self, finished: Finished) -> None:
        """It has ended."""


class Watcher(Protocol):
    """Is told what goes on, to show it; from several threads where trials run at the same time."""

    def begin(self, name: str, log: Path, total: int | None) -> LegWatcher:
        """A leg starts; ``total`` steps are expected."""

    def note(self, text: str) -> None:
        """Something worth saying."""


class StopError(Exception):
    """Ends a trial, or the proof, with a verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class CancelledError(Exception):
    """The proof is being given up: this trial is to end."""


@dataclass
class Proof:
    """One proof's folder, settings and what its reference showed.

    Args:
        options: what was asked for.
        watcher: shows what goes on.
        folder: for everything.
        marker: by which its processes are found.
        kept: the user's output folder.
        patience: seconds for a leg; None for no limit.
        total: steps of the reference.
        written: files that the reference wrote, in order.
        left: files that were there after it, relative to the output folder.
        cancelled: set when every leg is to end.
    """

    options: Options
    watcher: Watcher
    folder: Path
    marker: str
    kept: outputs.Kept | None = None
    patience: float | None = None
    total: int | None = None
    written: list[Touched] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def part(self, name: str) -> "Proof":
        """Return the same proof with a marker for one part of it, whose processes can be ended alone."""
        return replace(self, marker=f"{self.marker}.{name}")

    def output_of(self, place: Path) -> Path:
        """Return the folder that a trial's legs write to."""
        uses_out = any(outputs.PLACEHOLDER in part for part in self.options.command)
        return place / "out" if uses_out or self.kept is None else Path(self.kept.path)


def run_leg(
    proof: Proof,
    name: str,
    place: Path,
    command: Sequence[str],
    leg: int,
    orders: Orders,
    agent: str = "bitproof.prove.agent:attach",
) -> Finished:
    """Run one leg: trail, log and control folder lie in ``place`` under its number."""
    place.mkdir(parents=True, exist_ok=True)
    out, control, trail = place / "out", place / f"control-{leg}", place / f"leg-{leg}.trail"
    out.mkdir(exist_ok=True)
    folders = [str(out), *([proof.kept.path] if proof.kept is not None else [])]
    patient = proof.options.signal_number != signal.SIGKILL
    orders = msgspec.structs.replace(orders, control=str(control), outputs=folders, patient=patient)
    watched = proof.watcher.begin(name, place / f"leg-{leg}.log", proof.total)
    start = Start(
        command=outputs.fill(command, out),
        environment=child_environment(
            trail,
            leg=leg,
            agent=agent,
            extra={"orders": msgspec.to_builtins(orders)},
            deterministic=proof.options.deterministic,
        ),
        log=place / f"leg-{leg}.log",
        control=control,
        marker=proof.marker,
        signal_number=proof.options.signal_number,
        timeout=proof.patience,
        grace=proof.options.grace,
    )
    steps = _StepCounter(trail)

    def watch(elapsed: float) -> None:
        if proof.cancelled.is_set():
            raise CancelledError
        watched.tick(elapsed, steps.count())

    watch(0.0)
    finished = run(start, watch)
    watched.end(finished)
    return finished


def read_leg(place: Path, leg: int) -> Trail | None:
    """Read a leg's trail; None if it took no step."""
    folder = place / f"leg-{leg}.trail"
    trail = read_trail(folder) if any(folder.glob("*.leg")) else None
    return trail if trail is not None and all(x.steps for x in trail.legs) else None


def read_events(place: Path, leg: int, trail: Trail | None) -> list[Event]:
    """Return a leg's events, also those of a process that died before its first step."""
    if trail is not None:
        return [e for x in trail.legs for e in x.events]
    found = []
    for note in notes(place / f"leg-{leg}.trail"):
        found += [msgspec.convert(e, Event) for e in note.get("events", [])]
    return found


def fresh_output(proof: Proof) -> None:
    """Make the user's output folder what it was before the proof."""
    if proof.kept is not None:
        outputs.put_back(proof.kept)


def drop_output(place: Path) -> None:
    """Remove a trial's ``{out}`` folder."""
    shutil.rmtree(place / "out", ignore_errors=True)


def stop(reason: Reason, message: str, finished: Finished, trails: Trails) -> StopError:
    """Return the error that ends the proof as not to be judged."""
    verdict = Verdict(verdict="could-not-judge", reason=reason, message=message, output=finished.lines, trails=trails)
    return StopError(verdict)


class _StepCounter:
    """Counts the steps in a growing trail."""

    def __init__(self, trail: Path) -> None:
        self._trail = trail
        self._next = 0.0
        self._count = 0

    def count(self) -> int:
        """Return the number of steps, read anew every half second."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.5
            for path in sorted(self._trail.glob("*.leg"))[:1]:
                self._count = _steps_in(path, self._count)
        return self._count


def _steps_in(path: Path, known: int) -> int:
    try:
        connection: Any = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.1)
    except sqlite3.Error:
        return known
    try:
        return int(connection.execute("SELECT max(step) FROM steps").fetchone()[0] or 0)
    except sqlite3.Error:  # not yet there, or being made: the next look will tell
        return known
    finally:
        connection.close()
