"""Prove that a command resumes bit for bit: run it, cut it off, resume it, compare."""

import shutil
import signal
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bitproof.compare.causes.made import made
from bitproof.compare.judge import compare_resume, control_agrees, stitch
from bitproof.compare.timeline import Timeline
from bitproof.compare.verdict import Cause, Divergence, Moment, Reason, Seam, Steps, Trails, Verdict, worst
from bitproof.errors import UsageError
from bitproof.prove import outputs, plan
from bitproof.prove.guard import Guard
from bitproof.prove.orders import WRITES, Orders, state_keys
from bitproof.prove.process import Finished, Start, run
from bitproof.trail.launch import check_command, child_environment, why_nothing
from bitproof.trail.reader import Trail, notes, read_trail
from bitproof.trail.records import Event

_PATIENCE = 10.0
"""A leg after the reference may take this many times as long as the reference …"""
_LEAST_PATIENCE = 120.0
"""… and at least this many seconds."""


class Watcher(Protocol):
    """Is told what goes on, to show it."""

    def begin(self, name: str, log: Path, total: int | None) -> None:
        """A leg starts; ``total`` steps are expected."""

    def tick(self, elapsed: float, steps: int) -> None:
        """A leg has taken ``steps`` steps after ``elapsed`` seconds."""

    def end(self, finished: Finished) -> None:
        """A leg has ended."""

    def note(self, text: str) -> None:
        """Something worth saying."""


@dataclass(frozen=True)
class Options:
    """What to prove, and how.

    Args:
        command: program and arguments; ``{out}`` stands for a fresh folder a trial.
        resume_args: appended for a resumed leg.
        resume_command: instead of the command, for a resumed leg.
        output: a folder that the command always writes to.
        work: folder for trails and ``{out}`` folders.
        wanted: the faults; none for a telling default.
        crashes: spread this many crashes over one more trial.
        steps: end every leg after this step.
        reference: a trail to reuse as the reference.
        signal_number: what is sent at the fault.
        timeout: seconds for each leg; None for 10 times the reference's own (at least 120 s), and no limit for it.
        control: repeat the reference before a cause is called certain.
    """

    command: Sequence[str]
    resume_args: Sequence[str] = ()
    resume_command: Sequence[str] = ()
    output: Path | None = None
    work: Path = Path(".bitproof")
    wanted: Sequence[plan.Wanted] = ()
    crashes: int | None = None
    steps: int | None = None
    reference: Path | None = None
    signal_number: int = signal.SIGKILL
    timeout: float | None = None
    control: bool = True


@dataclass
class _Proof:
    """One proof's folder and settings."""

    options: Options
    watcher: Watcher
    folder: Path
    marker: str
    kept: outputs.Kept | None = None
    patience: float | None = None
    total: int | None = None
    writes: list[str] = field(default_factory=list)


class _StopError(Exception):
    """Ends the proof with a verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def prove(options: Options, watcher: Watcher) -> Verdict:
    """Run the proof.

    Raises:
        UsageError: the options do not fit the command or its reference.
        LaunchError: the command cannot be started.
    """
    _check(options)
    folder = _new_folder(options.work)
    proof = _Proof(options, watcher, folder, uuid.uuid4().hex, patience=options.timeout)
    kept_file: Path | None = None
    if options.output is not None:
        proof.kept = outputs.keep(options.output, folder)
        kept_file = folder / "output.json"
        kept_file.write_bytes(msgspec.json.encode(proof.kept))
    with Guard(proof.marker, kept_file):
        try:
            verdict = _prove(proof)
        except _StopError as stop:
            verdict = stop.verdict
        finally:
            if proof.kept is not None:
                outputs.put_back(proof.kept)
                shutil.rmtree(proof.kept.backup, ignore_errors=True)
    if verdict.verdict == "identical":
        for out in folder.rglob("out"):
            shutil.rmtree(out, ignore_errors=True)
    return msgspec.structs.replace(verdict, command=list(options.command))


def _prove(proof: _Proof) -> Verdict:
    reference = _reference(proof)
    line = stitch(reference.of_rank(0))
    proof.total = line.last
    wanted = plan.faults(line, list(proof.options.wanted), len(proof.writes), proof.options.crashes)
    _write_states(proof, line)
    trials = [_trial(proof, reference, line, fault, i, len(wanted)) for i, fault in enumerate(wanted, start=1)]
    if len(trials) == 1:
        return trials[0]
    top = worst(trials)
    return msgspec.structs.replace(top, trials=trials)


def _check(options: Options) -> None:
    check_command(options.command)
    if options.resume_command:
        check_command(options.resume_command)
    parts = [*options.command, *options.resume_args, *options.resume_command]
    if options.output is None and not any(outputs.PLACEHOLDER in part for part in parts):
        msg = (
            "where does the command write its checkpoints? Put {out} in its place, and each trial gets a fresh folder: "
            "bitproof prove -- python train.py --out {out}. If the folder is fixed in the script, name it: "
            "bitproof prove --output runs/ -- python train.py"
        )
        raise UsageError(msg)
    if options.steps is not None and options.steps < 2:
        msg = f"--steps {options.steps}: expected at least 2, one before the crash and one after it"
        raise UsageError(msg)


def _new_folder(work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    ignore = work / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    name = time.strftime("prove-%Y%m%d-%H%M%S")
    for i in range(1000):
        folder = work / (f"{name}-{i}" if i else name)
        if not folder.exists():
            folder.mkdir()
            return folder.resolve()
    msg = f"no free name for a new folder in {work}"
    raise UsageError(msg)


def _reference(proof: _Proof) -> Trail:
    options = proof.options
    if options.reference is not None:
        return read_trail(options.reference)
    place = proof.folder / "reference"
    finished = _run_leg(proof, "reference", place, options.command, 1, Orders(control="", stop_after=options.steps))
    trails = Trails(reference=str(place / "leg-1.trail"))
    if finished.ending == "timed-out":
        raise _stop("timed-out", f"the reference did not end within {proof.patience:g} s", finished, trails)
    if finished.ending == "failed":
        message = f"the command failed by itself, with exit status {finished.status}"
        raise _stop("reference-failed", message, finished, trails)
    trail = _read(place, 1)
    if trail is None:
        raise _stop("no-steps", why_nothing(place / "leg-1.trail", options.command), finished, trails)
    if proof.patience is None:
        proof.patience = max(_LEAST_PATIENCE, _PATIENCE * finished.seconds)
    listed = place / "control-1" / WRITES
    proof.writes = listed.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if listed.exists() else []
    return trail


def _trial(proof: _Proof, reference: Trail, line: Timeline, fault: plan.Fault, number: int, of: int) -> Verdict:
    place = proof.folder / f"trial-{number}"
    if proof.kept is not None:
        outputs.put_back(proof.kept)
    name = f"trial {number} of {of}: " if of > 1 else ""
    try:
        verdict = _crash_and_resume(proof, reference, line, fault, place, name)
    except _StopError as stop:
        verdict = stop.verdict
    if verdict.verdict == "identical":
        shutil.rmtree(place / "out", ignore_errors=True)
    return msgspec.structs.replace(verdict, fault=str(fault))


def _crash_and_resume(
    proof: _Proof, reference: Trail, line: Timeline, fault: plan.Fault, place: Path, name: str
) -> Verdict:
    legs: list[Trail] = []
    kills: list[Moment] = []
    torn: str | None = None
    crashes = len(fault.kills) or 1
    for leg in range(1, crashes + 1):
        orders = _orders(proof, line, fault, legs, kills)
        command = _command(proof, legs, torn)
        finished = _run_leg(proof, f"{name}crash {leg} ({_said(fault, leg)})", place, command, leg, orders)
        trail = _interrupted(proof, place, leg, finished, command)
        reached = finished.reached
        assert reached is not None
        torn = reached.path
        kills.append(Moment(reached.step, reached.micro))
        legs += [trail] if trail is not None else []
    orders = _resuming(proof, legs, kills, stop_after=proof.options.steps)
    command = _command(proof, legs, torn)
    finished = _run_leg(proof, f"{name}resume", place, command, crashes + 1, orders)
    return _resumed(proof, reference, line, legs, kills, finished, place, torn)


def _resumed(
    proof: _Proof,
    reference: Trail,
    line: Timeline,
    legs: list[Trail],
    kills: list[Moment],
    finished: Finished,
    place: Path,
    torn: str | None,
) -> Verdict:
    number = len(kills) + 1
    trail = _read(place, number)
    trails = Trails(
        reference=str(reference.path),
        interrupted=[str(t.path) for t in legs],
        resumed=[str(place / f"leg-{number}.trail")],
    )
    events = _events(place, number, trail)
    causes = _torn(torn, events, place)
    base = Verdict(verdict="resume-failed", steps=Steps(line.last, 0, 0), trails=trails, output=finished.lines)
    if finished.ending == "timed-out":
        message = f"the resumed leg did not end within {proof.patience:g} s"
        return msgspec.structs.replace(base, verdict="could-not-judge", reason="timed-out", message=message)
    if finished.ending == "failed":
        seams = [Seam(kills[-1], None, 0)]
        message = f"the resumed leg failed with exit status {finished.status}"
        if not causes:
            evidence = ["its last lines are given"]
            causes = [made("unknown", "possible", "the resumed leg failed by itself", evidence, None)]
        return msgspec.structs.replace(base, message=message, causes=causes, seams=seams)
    if trail is None:
        return _took_no_step(base, line, kills)
    verdict = compare_resume(reference, [*legs, trail], kills)
    if verdict.verdict == "diverged" and verdict.divergence is not None and proof.options.control:
        verdict = _controlled(
            proof, reference, verdict, lambda: compare_resume(reference, [*legs, trail], kills, controlled=True)
        )
    if causes and verdict.verdict not in {"identical", "could-not-judge"}:
        verdict = msgspec.structs.replace(verdict, causes=[*causes, *verdict.causes])
    return msgspec.structs.replace(verdict, trails=trails)


def _took_no_step(base: Verdict, line: Timeline, kills: list[Moment]) -> Verdict:
    """Judge a resumed leg that ended well without a step: right only if nothing was left to do."""
    if kills[-1].step >= line.last and not kills[-1].micro:
        seams = [Seam(kills[-1], kills[-1], 0)]
        return msgspec.structs.replace(base, verdict="identical", seams=seams, output=[])
    divergence = Divergence(
        step=kills[-1].step + 1, rank=0, facet="end", names=["the resumed leg took no step"], differing=1, of=1
    )
    evidence = [f"the reference ends at step {line.last}, and the resumed leg took no step"]
    cause = made("stopped-early", "certain", "the resumed leg ended without a step", evidence, None)
    seams = [Seam(kills[-1], None, 0)]
    return msgspec.structs.replace(base, verdict="diverged", divergence=divergence, causes=[cause], seams=seams)


def _controlled(proof: _Proof, reference: Trail, verdict: Verdict, again: Callable[[], Verdict]) -> Verdict:
    """Repeat the reference up to the divergence before blaming the resume for it."""
    divergence = verdict.divergence
    assert divergence is not None
    place = proof.folder / "control"
    if place.exists():
        shutil.rmtree(place)
    if proof.kept is not None:
        outputs.put_back(proof.kept)
    stop = None if divergence.facet == "end" else divergence.step
    stop = stop if proof.options.steps is None else min(stop or proof.options.steps, proof.options.steps)
    finished = _run_leg(proof, "control", place, proof.options.command, 1, Orders(control="", stop_after=stop))
    control = _read(place, 1)
    if finished.ending not in {"ended", "stopped"} or control is None:
        proof.watcher.note("the control leg did not end well, so no cause is called certain")
        return verdict
    differs = control_agrees(reference, control, divergence.step)
    if differs is None:
        return again()
    return msgspec.structs.replace(differs, verdict="not-reproducible", seams=verdict.seams)


def _run_leg(proof: _Proof, name: str, place: Path, command: Sequence[str], leg: int, orders: Orders) -> Finished:
    place.mkdir(parents=True, exist_ok=True)
    out, control, trail = place / "out", place / f"control-{leg}", place / f"leg-{leg}.trail"
    out.mkdir(exist_ok=True)
    log = place / f"leg-{leg}.log"
    folders = [str(out), *([proof.kept.path] if proof.kept is not None else [])]
    orders = msgspec.structs.replace(
        orders, control=str(control), outputs=folders, patient=proof.options.signal_number != signal.SIGKILL
    )
    environment = child_environment(
        trail, leg=leg, agent="bitproof.prove.agent:attach", extra={"orders": msgspec.to_builtins(orders)}
    )
    proof.watcher.begin(name, log, proof.total)
    start = Start(
        command=outputs.fill(command, out),
        environment=environment,
        log=log,
        control=control,
        marker=proof.marker,
        signal_number=proof.options.signal_number,
        timeout=proof.patience,
    )
    steps = _StepCounter(trail)
    finished = run(start, lambda elapsed: proof.watcher.tick(elapsed, steps.count()))
    proof.watcher.end(finished)
    return finished


def _orders(proof: _Proof, line: Timeline, fault: plan.Fault, legs: list[Trail], kills: list[Moment]) -> Orders:
    orders = _resuming(proof, legs, kills) if kills else Orders(control="")
    if fault.write is not None:
        return msgspec.structs.replace(orders, write=fault.write)
    kill = fault.kills[len(kills)]
    head = line.head(kill.step)
    return msgspec.structs.replace(
        orders,
        step=kill.step,
        micro=kill.micro,
        updates=head.updates if head is not None else 1,
        rank=kill.step % line.legs[0].leg.world_size,
    )


def _resuming(proof: _Proof, legs: list[Trail], kills: list[Moment], stop_after: int | None = None) -> Orders:
    """Return orders by which a resumed leg finds out at which step of the run it starts."""
    saved = [e.step for trail in legs[-1:] for leg in trail.legs for e in leg.events if e.kind == "file-saved"]
    return Orders(
        control="",
        stop_after=stop_after,
        states=_states(proof),
        not_after=kills[-1].step,
        checkpoint=min(saved[-1], kills[-1].step) if saved else 0,
    )


def _command(proof: _Proof, legs: list[Trail], torn: str | None) -> Sequence[str]:
    """Return the command of the next leg: the resume arguments only once there is something to resume from."""
    options = proof.options
    written = [
        event.data.get("path")
        for trail in legs
        for leg in trail.legs
        for event in leg.events
        if event.kind == "file-saved" and (torn is None or event.data.get("path") != torn)
    ]
    nothing_seen = not any(e.kind == "file-saved" for t in legs for leg in t.legs for e in leg.events)
    if nothing_seen and legs:
        written += [path for path in _written(proof, legs) if path != torn]
    if not legs or not (written or (torn is not None and _stays(proof, torn))):
        return options.command
    if options.resume_command:
        return options.resume_command
    return [*options.command, *options.resume_args]


def _written(proof: _Proof, legs: list[Trail]) -> list[str]:
    """List the files that earlier legs wrote, for writers that the trail does not know."""
    del proof
    found = []
    for trail in legs:
        number = trail.legs[0].number
        listed = trail.path.parent / f"control-{number}" / WRITES
        if listed.exists():
            found += listed.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return found


def _stays(proof: _Proof, torn: str) -> bool:
    """Tell whether the reference's file of the same name was still there at its end: then it is no temporary name."""
    trial_out = next((p for p in Path(torn).parents if p.name == "out" and p.parent.name.startswith("trial-")), None)
    if trial_out is None:
        return True
    return (proof.folder / "reference" / "out" / Path(torn).relative_to(trial_out)).exists()


def _interrupted(proof: _Proof, place: Path, leg: int, finished: Finished, command: Sequence[str]) -> Trail | None:
    trails = Trails(reference=str(proof.folder / "reference"), interrupted=[str(place / f"leg-{leg}.trail")])
    if finished.ending == "timed-out":
        raise _stop("timed-out", f"the leg to be cut off did not end within {proof.patience:g} s", finished, trails)
    if finished.reached is None:
        if finished.ending == "failed":
            message = f"the leg to be cut off failed by itself, with exit status {finished.status}"
            if leg > 1:
                base = Verdict(verdict="resume-failed", message=message, output=finished.lines, trails=trails)
                raise _StopError(base)
            raise _stop("interrupted-failed", message, finished, trails)
        trail = _read(place, leg)
        steps = max((len(x.steps) for x in trail.legs), default=0) if trail is not None else 0
        message = f"the leg ended after {steps} steps of its own, before the crash was due ({' '.join(command)})"
        raise _stop("fault-not-reached", message, finished, trails)
    return _read(place, leg)


def _torn(torn: str | None, events: Sequence[Event], place: Path) -> list[Cause]:
    """Name a half-written file, if the resumed leg read it or something beside it."""
    if torn is None:
        return []
    loaded = [e for e in events if e.kind == "file-loaded" and e.data.get("path")]
    for event in loaded:
        if Path(event.data["path"]) == Path(torn):
            evidence = [f"{_short(torn, place)} was half written when the process died", "the resumed leg read it"]
            summary = f"the resume read {_short(torn, place)}, which was cut off while it was written"
            return [made("torn-checkpoint", "certain", summary, evidence, event.where)]
    for event in loaded:
        beside = Path(event.data["path"]).parent == Path(torn).parent
        if beside and Path(torn).parent != place / "out":
            evidence = [
                f"{_short(torn, place)} was half written when the process died",
                f"the resumed leg read {_short(event.data['path'], place)} beside it",
            ]
            summary = f"the resume chose {_short(str(Path(torn).parent), place)}, which was not complete"
            return [made("incomplete-checkpoint-chosen", "certain", summary, evidence, event.where)]
    return []


def _events(place: Path, leg: int, trail: Trail | None) -> list[Event]:
    """Return a leg's events, also those of a process that died before its first step."""
    if trail is not None:
        return [e for x in trail.legs for e in x.events]
    found = []
    for note in notes(place / f"leg-{leg}.trail"):
        found += [msgspec.convert(e, Event) for e in note.get("events", [])]
    return found


def _short(path: str, place: Path) -> str:
    return str(Path(path).relative_to(place / "out")) if Path(path).is_relative_to(place / "out") else path


def _read(place: Path, leg: int) -> Trail | None:
    folder = place / f"leg-{leg}.trail"
    return read_trail(folder) if any(folder.glob("*.leg")) else None


def _write_states(proof: _Proof, line: Timeline) -> None:
    states: dict[str, list[int]] = {}
    for step in range(line.last + 1):
        head = line.head(step + 1)
        for key in state_keys(head.roots) if head is not None else ():
            states.setdefault(key, []).append(step)
    (proof.folder / "states.json").write_bytes(msgspec.json.encode(states))


def _states(proof: _Proof) -> str:
    return str(proof.folder / "states.json")


def _said(fault: plan.Fault, leg: int) -> str:
    if fault.write is not None:
        return f"while file {fault.write} is written"
    kill = fault.kills[leg - 1]
    return f"in step {kill.step} after backward pass {kill.micro}" if kill.micro else f"after step {kill.step}"


def _stop(reason: Reason, message: str, finished: Finished, trails: Trails) -> _StopError:
    return _StopError(
        Verdict(verdict="could-not-judge", reason=reason, message=message, output=finished.lines, trails=trails)
    )


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
