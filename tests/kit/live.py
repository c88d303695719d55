"""Real training processes, in a fraction of a second each.

Importing torch takes seconds, so a leg is a fork of the test process, where torch is imported already. The recorder is
attached in the child, the child dies by SIGKILL where it is told to, and what is compared are the trails on disk.
"""

import contextlib
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bitproof.compare.judge import compare_resume, compare_trails, control_agrees
from bitproof.compare.verdict import Moment, Verdict
from bitproof.environment import describe
from bitproof.prove.orders import state_keys
from bitproof.trail.attach import attach
from bitproof.trail.reader import Trail, read_trail
from bitproof.trail.recorder import Recorder
from bitproof.trail.settings import Settings

TORCH_DEFAULT_SEED = 67280421310721
"""What torch's generator starts from in a new process."""
_PATIENCE = 60  # seconds

torch.set_num_threads(1)  # a pool of threads would not survive the fork
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # imports torch._dynamo, which takes seconds
describe()  # what is looked up once a process is looked up here: nobody's edit comes between two legs


@dataclass(frozen=True)
class Job:
    """What a training function is told.

    Args:
        out: folder for its checkpoints.
        resume: whether it is to go on from the newest one.
    """

    out: Path
    resume: bool

    def save(self, count: int, state: Any) -> None:
        """Write a checkpoint whole."""
        path = self.out / f"checkpoint-{count:05}.pt"
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def newest(self) -> Any:
        """Return the newest checkpoint, if the job is to resume and there is one."""
        path = max(self.out.glob("checkpoint-*.pt"), default=None)
        return None if path is None or not self.resume else torch.load(path, weights_only=False)


Train = Callable[[Job], None]


@dataclass
class Lab:
    """Runs legs below one folder.

    Args:
        folder: for trails and outputs.
    """

    folder: Path
    _count: int = field(default=0, init=False)

    def record(self, train: Train, **options: Any) -> Trail:
        """Run a training function to its end, in a process of its own, and read its trail."""
        return self.leg(train, self._fresh("out"), **options)

    def leg(
        self,
        train: Train,
        out: Path,
        *,
        resume: bool = False,
        kill: Moment | None = None,
        states: dict[str, list[int]] | None = None,
        before: Callable[[], None] = lambda: None,
        ranks: int = 1,
    ) -> Trail:
        """Run one leg and read its trail.

        Args:
            train: the training function.
            out: its output folder.
            resume: whether it is to resume.
            kill: where it dies, in steps of the whole run.
            states: the reference's steps by state, by which a resumed leg is found in the run.
            before: called in the child before anything is recorded.
            ranks: how many processes, one after another: they do not talk to each other.
        """
        trail = self._fresh("trail")
        expected = -signal.SIGKILL if kill is not None else 0
        for rank in range(ranks):

            def work(rank: int = rank) -> None:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
                _train(train, Job(out, resume), trail, kill, states, before)

            status = _in_child(work, trail / "log")
            if status != expected:
                log = (trail / "log").read_text()
                raise AssertionError(f"a leg ended with status {status} instead of {expected}\n{log}")
        return read_trail(trail)

    def prove(
        self,
        train: Train,
        *kills: float | Moment,
        resumed: Train | None = None,
        control: bool = True,
        ranks: int = 1,
        before: Callable[[], None] = lambda: None,
    ) -> Verdict:
        """Run the reference, crash it, resume it, compare, and repeat the reference before anything is certain.

        Args:
            train: the training function.
            kills: where the legs die: 7 for right after step 7, 7.2 for inside step 7 after its second backward pass.
            resumed: the training function of the resumed legs, if it is another one.
            control: repeat the reference if the legs part.
            ranks: how many processes a leg has.
            before: called in each resumed leg before anything is recorded.
        """
        reference = self.record(train, ranks=ranks)
        return self.trial(train, reference, *kills, resumed=resumed, control=control, ranks=ranks, before=before)

    def trial(
        self,
        train: Train,
        reference: Trail,
        *kills: float | Moment,
        resumed: Train | None = None,
        control: bool = True,
        ranks: int = 1,
        before: Callable[[], None] = lambda: None,
    ) -> Verdict:
        """Do the same with a reference that is there already."""
        moments = [moment(kill) for kill in kills]
        out = self._fresh("out")
        legs = []
        for i, kill in enumerate([*moments, None]):
            runs = train if i == 0 else resumed or train
            states = steps_by_state(reference)
            leg = self.leg(
                runs, out, resume=i > 0, kill=kill, states=states, ranks=ranks, **({"before": before} if i else {})
            )
            legs.append(leg)
        verdict = compare_resume(reference, legs, moments)
        if verdict.divergence is not None and control and verdict.verdict == "diverged":
            again = self.record(train, ranks=ranks)
            differs = control_agrees(reference, again, verdict.divergence.step)
            verdict = differs or compare_resume(reference, legs, moments, controlled=True)
        return verdict

    def diff(self, one: Train, other: Train, **options: Any) -> Verdict:
        """Record two training functions from their start and compare them; options go to the second one."""
        return compare_trails(self.record(one), self.record(other, **options))

    def _fresh(self, kind: str) -> Path:
        self._count += 1
        path = self.folder / f"{kind}-{self._count}"
        path.mkdir()
        return path


def moment(kill: float | Moment) -> Moment:
    """Read 7.2 as a moment inside step 7."""
    if isinstance(kill, Moment):
        return kill
    step, _, micro = str(kill).partition(".")
    return Moment(int(step), int(micro or 0))


def steps_by_state(reference: Trail) -> dict[str, list[int]]:
    """Return after which steps the reference had which state."""
    found: dict[str, list[int]] = {}
    leg = reference.legs[0]
    for head in [*leg.steps, *([leg.final] if leg.final is not None else [])]:
        for key in state_keys(head.roots):
            found.setdefault(key, []).append(head.step - 1)
    return found


def _train(
    train: Train,
    job: Job,
    trail: Path,
    kill: Moment | None,
    states: dict[str, list[int]] | None,
    before: Callable[[], None],
) -> None:
    # A new process's generators: torch's starts from a constant, the others from the system's entropy.
    torch.manual_seed(TORCH_DEFAULT_SEED)
    random.seed()
    np.random.seed()  # noqa: NPY002
    before()
    recorder, detach = attach(Settings(trail))
    if kill is not None:
        _Killer(recorder, kill, states if job.resume else None)
    train(job)
    detach()


class _Killer:
    """Ends this process at a moment of the whole run."""

    def __init__(self, recorder: Recorder, kill: Moment, states: dict[str, list[int]] | None) -> None:
        self._kill, self._states, self._offset = kill, states, 0
        recorder.on_boundary = self._boundary
        if states is not None:
            recorder.on_first_state = self._first_state

    def _first_state(self, roots: dict[str, int]) -> None:
        assert self._states is not None
        found = (s for key in state_keys(roots) for s in reversed(self._states.get(key, [])) if s <= self._kill.step)
        self._offset = next(found, 0)

    def _boundary(self, step: int, micro: int, updates: int) -> None:
        del updates
        if (step + self._offset, micro) == (self._kill.step, self._kill.micro):
            os.kill(os.getpid(), signal.SIGKILL)


def _in_child(work: Callable[[], None], log: Path) -> int:
    """Fork, do the work there, and return the exit status (negative: the signal)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:
        _be_child(work, log)
    deadline = time.monotonic() + _PATIENCE
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.003)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # loader workers that outlive their parent


def _be_child(work: Callable[[], None], log: Path) -> None:
    status = 1
    try:
        os.setsid()
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        warnings.simplefilter("ignore")
        work()
        status = 0
    except BaseException:  # noqa: BLE001  # whatever it is, this process must not return into the test run
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def codes(verdict: Verdict, confidence: str = "certain") -> list[str]:
    """Return the causes' codes of one confidence."""
    return [cause.code for cause in verdict.causes if cause.confidence == confidence]


def evidence_of(verdict: Verdict, code: str) -> str:
    """Return a cause's evidence as one text."""
    return "\n".join(line for cause in verdict.causes if cause.code == code for line in cause.evidence)


def assert_only(verdict: Verdict, code: str, *, step: int, facet: str, said: Sequence[str] = ()) -> None:
    """Check that one cause is certain, where the legs part, and what the evidence says."""
    assert verdict.verdict == "diverged", verdict
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) == (step, facet), verdict
    assert codes(verdict) == [code], verdict.causes
    text = evidence_of(verdict, code)
    for words in said:
        assert words in text, text
